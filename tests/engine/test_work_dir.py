"""Two trainings never share a folder."""

import subprocess
import sys

import pytest

pytest.importorskip("mmengine")

from hypvision.engine.work_dir import lock_work_dir
from hypvision.errors import HypvisionError

HOLD = """
import sys
from hypvision.engine.work_dir import lock_work_dir
with lock_work_dir(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_training_is_refused_and_named_until_it_ends(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        message = rf"Another training .*: process {other.pid} on .*--work-dir"
        with pytest.raises(HypvisionError, match=message), lock_work_dir(tmp_path):
            pass
    finally:
        other.kill()  # the system gives the lock back
        other.wait()
    with lock_work_dir(tmp_path):
        pass
    assert not (tmp_path / ".training.json").exists()
