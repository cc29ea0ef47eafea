"""Whatever ends a command is a sentence and a status: errors of the machine, consoles, readers that
go, Ctrl-C."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from helpers.cases import each

from hypvision.io.errors import HypvisionError, guard, printable

ROOT = Path(__file__).parents[1]


def deep():
    return deep()


def failing(error):
    def function():
        raise error

    return function


@each(
    "function, status, said",
    [
        (failing(HypvisionError("Wrong\nname \x1b[2J.")), 2, "error: Wrong name \\x1b[2J."),
        (failing(OSError(errno.ENOSPC, "No space left on device")), 2, "The disk is full"),
        (failing(MemoryError()), 2, "The memory is full"),
        (
            failing(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you")),
            2,
            "memory is full",
        ),
        (
            failing(RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed. ")),
            2,
            "signal: Killed",
        ),
        (
            failing(RuntimeError("DataLoader worker (pid 3) is killed by signal: Terminated. ")),
            2,
            "told to end (SIGTERM)",
        ),
        (
            failing(RuntimeError("DataLoader worker (pid(s) 3, 4) exited unexpectedly")),
            2,
            "worker process ended",
        ),
        (failing(BrokenProcessPool("abruptly")), 2, "worker process ended"),
        (deep, 2, "nested too deeply"),
        (
            lambda: Path("~no_such_user").expanduser(),
            2,
            "A path leads nowhere: Could not determine home",
        ),
        (lambda: os.stat("a\0b"), 2, "has a NUL character"),
        (lambda: "\udcff".encode(), 2, "not UTF-8"),
        (
            failing(RuntimeError("Symlink loop from '/a'")),
            2,
            "leads nowhere: Symlink loop from '/a'",
        ),  # Path.resolve
        (failing(KeyboardInterrupt()), 130, "Interrupted."),
        (failing(BrokenPipeError(errno.EPIPE, "Broken pipe")), 141, ""),
        (lambda: print("\udcff \u20ac"), 0, ""),
    ],
)
def test_an_end_is_a_sentence_and_a_status(capsys, function, status, said):
    assert guard(function) == status
    assert said in capsys.readouterr().err


def test_bugs_are_shown_as_bugs():
    with pytest.raises(ZeroDivisionError):
        guard(lambda: 1 / 0)


def test_control_characters_are_escaped():
    assert printable("a\x1b]0;t\x07\r\x9b\u202eb\udcff") == r"a\x1b]0;t\x07\r\x9b\u202eb\udcff"
    assert printable("line\n\ttab é 😀 \xa0") == "line\n\ttab é 😀 \xa0"


def run(words, **options):
    """The console script, without PyTorch: its status and what it said."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "hypvision_cli", *words]
    done = subprocess.run(
        command, stderr=subprocess.PIPE, env=env, cwd=options.pop("cwd", None), **options
    )
    return done.returncode, done.stderr.decode()


def test_a_reader_that_goes_ends_the_command():
    reading, writing = os.pipe()
    os.close(reading)
    assert run(["configs"], stdout=writing) == (141, "")
    os.close(writing)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_behind_the_output_is_told():
    with open("/dev/full", "wb") as full:
        status, said = run(["configs"], stdout=full)
    assert status == 2 and said.count("The disk is full") == 1 and "Exception" not in said


def test_an_ascii_console_shows_any_name():
    status, said = run(
        ["configs", "é\u20ac\udcff"], env=dict(PYTHONIOENCODING="ascii"), stdout=subprocess.PIPE
    )
    assert status == 2 and said.strip().startswith(
        "hypvision: error: No config matches '\\xe9\\u20ac\\udcff'"
    )


def test_ctrl_c_before_the_command_runs(tmp_path):
    """While the modules are imported, which takes longer than most commands."""
    (tmp_path / "argparse.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)  # a "
        "shell's background jobs ignore it\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    )
    code = f"import sys; sys.path.insert(1, {str(tmp_path)!r})\n"
    code += "from hypvision_cli import main; sys.exit(main(['configs']))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 128 + signal.SIGINT and done.stderr.strip() == "Interrupted."
