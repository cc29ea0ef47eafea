"""Two processes with half the batch each train like one."""

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("mmengine")
from helpers.engine import ROOT, make_images, scalars, write_config

from hypvision.engine.run import train


def launch(config, work_dir):
    """Train in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(
        os.environ,
        PYTHON=sys.executable,
        PORT=str(port),
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",
    )
    command = ["bash", "tools/dist_train.sh", config, "2", "--work-dir", work_dir]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=400, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_two_gloo_processes_give_the_loss_curve_of_one(tmp_path):
    data = make_images(tmp_path / "data")
    one = write_config(tmp_path / "one.py", data, batch=8, epochs=3)
    two = write_config(tmp_path / "two.py", data, batch=4, epochs=3)
    launch(two, tmp_path / "two")
    train(one, tmp_path / "one")
    expected, got = scalars(tmp_path / "one", "loss"), scalars(tmp_path / "two", "loss")
    assert len(expected) == 9
    assert got == pytest.approx(expected, abs=1e-5)
    assert scalars(tmp_path / "two", "top1") == pytest.approx(scalars(tmp_path / "one", "top1"))
