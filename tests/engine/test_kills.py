"""A kill, or a full disk, at any call that changes a file loses no checkpoint, in trainings of
every kind."""

import errno
import os
import signal

import pytest

pytest.importorskip("mmengine")
from helpers import kills
from helpers.processes import Forks

from hypvision.engine.run import train

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="names of open files are read from /proc"
)


def test_at_each_call_the_newest_and_the_best_weights_stand(tmp_path, monkeypatch):
    monkeypatch.setattr("hypvision.engine.run.draw_results", lambda runner: None)
    (tmp_path / "data").mkdir()
    run = kills.KINDS["best"]("best", tmp_path / "data")
    with kills.Calls(tmp_path / "run", tmp_path / "log", states=tmp_path / "states"):
        run(tmp_path / "run")
    calls = kills.read_calls(tmp_path / "log")
    removed = [
        os.path.basename(call.path)
        for call in calls
        if call.kind == "os.remove" and call.path.endswith("pth")
    ]
    assert removed == ["epoch_1.pth", "best_rising_epoch_1.pth"]
    (tmp_path / "run").rename(tmp_path / "gone")  # last_checkpoint has the whole path
    assert not kills.lost_at_any("best", tmp_path / "states", calls)


def test_the_best_weights_of_another_folder_stay(tmp_path, monkeypatch):
    """A training that goes on in a new folder has its own; one whose folder was moved still
    replaces them."""
    monkeypatch.setattr("hypvision.engine.run.draw_results", lambda runner: None)
    (tmp_path / "data").mkdir()
    kills.KINDS["best"]("best", tmp_path / "data")
    begun, new, moved = tmp_path / "begun", tmp_path / "new", tmp_path / "moved"
    options = {"train_cfg.max_epochs": 1, "param_scheduler": []}
    train(tmp_path / "data/best.py", begun, cfg_options=options)
    train(
        tmp_path / "data/best.py", new, begun / "epoch_1.pth", cfg_options={"param_scheduler": []}
    )
    assert (begun / "best_rising_epoch_1.pth").exists()
    assert kills.files(new) == ["best_rising_epoch_2.pth", "epoch_2.pth"]
    begun.rename(moved)
    train(tmp_path / "data/best.py", moved, "auto", cfg_options={"param_scheduler": []})
    assert kills.files(moved) == ["best_rising_epoch_2.pth", "epoch_2.pth"]


@pytest.fixture(scope="module")
def forks():
    forks = Forks("helpers.kills")
    yield forks
    forks.close()


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, errno.ENOSPC], ids=["killed", "full"])
@pytest.mark.parametrize("kind", kills.KINDS)
def test_what_is_broken_off_loses_nothing(kind, error, forks, tmp_path):
    """A full disk is told, but for files that are written after the training."""
    calls = kills.whole(kind, forks, tmp_path)
    numbers = kills.chosen(calls, error is None)
    assert len(numbers) > 20
    for broken in kills.walk(kind, forks, tmp_path, calls, numbers, error):
        assert not broken.problems, broken
        assert broken.outcome.returncode in ((-signal.SIGKILL,) if error is None else (0, 3)), (
            broken
        )
        assert broken.outcome.returncode != 3 or "disk is full" in broken.outcome.output, broken
