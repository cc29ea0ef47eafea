"""Running many cells: equal results by every launcher, isolated failures, and no files left
behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from argparse import Namespace
from pathlib import Path

import pytest
from helpers.engine import make_images

from hypvision.cli import main, parser_of
from hypvision.cli.arguments import Parser, add_submit_arguments
from hypvision.cli.submit import Cell, run_cells, submit_options
from hypvision.cli.train import run_train
from hypvision.io.errors import HypvisionError

ROOT = Path(__file__).parents[2]

# Processes import what they call by name, so that these live in a module and not in this file,
# which pytest names.
WORK = """
import os, time
from tempfile import TemporaryDirectory
from pathlib import Path
from hypvision.io.errors import HypvisionError

def square(x):
    return x * x

def process():
    return os.getpid()

def mistake():
    raise HypvisionError("The width is\\n  too large.")

def bug():
    return 1 // 0

def long():
    Path("x" * 5000).stat()

def die():
    os._exit(7)

def unpicklable():
    return lambda: 0

def sleep(path):
    with TemporaryDirectory(prefix="mine-", dir=Path(path).parent):
        Path(path).write_text(str(os.getpid()))
        time.sleep(300)
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "cells_at_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    import cells_at_work

    yield cells_at_work
    del sys.modules["cells_at_work"]


HERE, PROCESSES = pytest.param(dict(jobs=1), id="here"), pytest.param(dict(jobs=2), id="processes")
# Each of its jobs imports PyTorch anew.
SUBMITIT = pytest.param(dict(submit="local", jobs=2), id="submitit", marks=pytest.mark.slow)


@pytest.mark.parametrize("way", [HERE, PROCESSES, SUBMITIT])
def test_every_way_gives_the_same_and_failures_stay_alone(work, tmp_path, capsys, way):
    if "submit" in way:
        pytest.importorskip("submitit")
    asked = []

    def finished(key):
        asked.append(key)
        return key == "four"

    cells = [Cell("two", work.square, (2,)), Cell("mistake", work.mistake), Cell("four", work.bug)]
    cells += [Cell("bug", work.bug), Cell("long", work.long), Cell("three", work.square, (3,))]
    outcome = run_cells(cells, finished, folder=tmp_path / "jobs", **way)
    assert outcome.results == {"two": 4, "three": 9} and outcome.skipped == ["four"]
    assert asked == [cell.key for cell in cells]
    assert outcome.failures["mistake"] == "The width is too large."
    assert outcome.failures["bug"].startswith("ZeroDivisionError")
    assert outcome.failures["long"].startswith("The file system refused")
    said = capsys.readouterr().out
    assert "return 1 // 0" in said
    assert said.count("Traceback") == 1  # of the bug, not of the mistake
    with pytest.raises(
        HypvisionError, match=r"3 of 6 cells failed. \w+: .*finished cells are not repeated"
    ):
        outcome.check()
    assert (tmp_path / "jobs").exists() == ("submit" in way)


def test_a_reason_that_all_cells_share_is_printed_once(work, capsys):
    outcome = run_cells(
        [Cell("one", work.mistake), Cell("two", work.bug), Cell("three", work.mistake)]
    )
    said = capsys.readouterr().out
    assert said.count("The width is too large.") == 1 and "three failed: as one did" in said
    assert outcome.failures["one"] == outcome.failures["three"] == "The width is too large."


def test_a_process_that_dies_and_a_result_that_cannot_travel(work):
    cells = [Cell("die", work.die), Cell("lambda", work.unpicklable), Cell("pid", work.process)]
    outcome = run_cells(cells, jobs=2)
    assert outcome.failures["die"] == "its process ended with status 7"
    assert "could not be sent" in outcome.failures["lambda"]
    assert outcome.results["pid"] != os.getpid()
    assert run_cells(cells[2:]).results["pid"] == os.getpid()


@pytest.mark.slow
def test_a_job_that_dies(work, tmp_path):
    pytest.importorskip("submitit")
    cells = [Cell("die", work.die), Cell("two", work.square, (2,))]
    outcome = run_cells(cells, jobs=2, submit="local", folder=tmp_path / "jobs")
    assert "ended without a result" in outcome.failures["die"] and outcome.results == {"two": 4}


def test_nothing_to_do():
    outcome = run_cells([Cell("a", time.sleep, (300,))], lambda key: True)
    outcome.check()
    assert outcome == ({}, {}, ["a"])
    with pytest.raises(ValueError, match="same key"):
        run_cells([Cell("a", print), Cell("a", print)])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("way", [PROCESSES, SUBMITIT])
@pytest.mark.slow
def test_an_interruption_ends_what_runs(work, tmp_path, way, number):
    """Ctrl-C of a terminal, which goes to all; SIGTERM to the command alone, which a script runs in
    the background."""
    alone = number == signal.SIGTERM
    if "submit" in way:
        pytest.importorskip("submitit")
    code = f"""
    import signal
    import cells_at_work as work
    from hypvision.cli.submit import Cell, run_cells
    from hypvision.io.errors import guard
    if __name__ == "__main__":
        # tests as a background job ignore it
        how = {"signal.SIG_IGN" if alone else "signal.default_int_handler"}
        signal.signal(signal.SIGINT, how)
        cells = [Cell(name, work.sleep, (rf"{tmp_path}/" + name,)) for name in "abc"]
        raise SystemExit(guard(lambda: run_cells(cells, folder=r"{tmp_path}/jobs", **{way})))
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(code))
    main = subprocess.Popen(
        [sys.executable, tmp_path / "main.py"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in "ab"):
        assert main.poll() is None, main.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (os.kill if alone else os.killpg)(main.pid, number)
    _, said = main.communicate(timeout=60)
    assert main.returncode == 130 and ("SIGTERM" if alone else "Interrupted") in said, said
    assert "submit" in way or "Traceback" not in said  # submitit's own processes print theirs
    for name in "ab":
        process = int((tmp_path / name).read_text())
        while running(process):
            assert time.monotonic() < deadline, f"{name} is still running"
            time.sleep(0.1)
    if alone:
        assert not list(tmp_path.glob("mine-*"))  # what the cells had for now
    assert not (tmp_path / "c").exists()


def running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_options_of_a_command(capsys):
    parser = Parser(prog="x")
    add_submit_arguments(parser)
    args = parser.parse_args(
        [
            "--jobs",
            "3",
            "--submit",
            "slurm",
            "--submit-options",
            "timeout_min=240",
            "slurm_partition=gpu",
        ]
    )
    expected = dict(jobs=3, submit="slurm", options=dict(timeout_min=240, slurm_partition="gpu"))
    assert submit_options(args) == expected
    assert submit_options(parser.parse_args([])) == dict(jobs=None, submit=None, options={})
    for words in (["--jobs", "0"], ["--submit", "slrum"], ["--submit-options", "timeout"]):
        with pytest.raises(HypvisionError, match="--jobs|Did you mean slurm|takes KEY=VALUE"):
            parser.parse_args(words)


def test_mistakes_are_explained(monkeypatch, tmp_path):
    cell = Cell("a", print)
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun here
    with pytest.raises(HypvisionError, match="--submit slurm: submitit refuses"):
        run_cells([cell], submit="slurm", folder=tmp_path)
    with pytest.raises(HypvisionError, match="no_such"):
        run_cells([cell], submit="local", folder=tmp_path, options=dict(no_such=1))


def test_submitit_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(HypvisionError, match=r"needs the package 'submitit'.*\[submit\]"):
        run_cells(
            [Cell("a", print)],
            folder=tmp_path,
            **submit_options(Namespace(jobs=None, submit="local", submit_options=[])),
        )


def test_options_of_submitit_need_it(capsys):
    assert main(["train", "mine.py", "--submit-options", "nodes=2"]) != 0
    assert "--submit-options has an effect only with --submit" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_in_a_job(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    make_images(tmp_path / "mine", per_class=3, classes=("blue", "red"))
    small = ["--image-size", "32", "--method", "probe"]
    assert main(["train", "mine", *small, "--submit", "local"]) == 0
    assert "work_dirs/mine/jobs" in capsys.readouterr().out
    assert (tmp_path / "work_dirs/mine/probe.pth").is_file()
    [log] = (tmp_path / "work_dirs/mine/jobs").glob("*_log.out")
    assert "found: class folders" in log.read_text()
    with pytest.raises(HypvisionError, match="1 of 1 cells failed"):
        run_train(parser_of("train").parse_args(["gone.py", "--submit", "local"]))
