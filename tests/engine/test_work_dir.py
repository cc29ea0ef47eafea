"""Two trainings never share a folder."""

import multiprocessing

import pytest

pytest.importorskip("mmengine")

from hypvision.engine.run import lock_work_dir
from hypvision.io.errors import HypvisionError


def test_another_training_is_refused_and_named_until_it_ends(tmp_path):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def hold():
        with lock_work_dir(tmp_path):
            there.send("held")
            there.recv()

    other = context.Process(target=hold)
    other.start()
    try:
        assert here.poll(60)
        message = rf"Another training .*: process {other.pid} on .*--work-dir"
        with pytest.raises(HypvisionError, match=message), lock_work_dir(tmp_path):
            pass
    finally:
        other.kill()  # the system gives the lock back
        other.join()
    with lock_work_dir(tmp_path):
        pass
    assert not (tmp_path / ".training.json").exists()
