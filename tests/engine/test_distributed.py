"""Two processes with half the batch each train like one."""

import os
import socket
import subprocess
import sys

import pytest
import torch

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
    command = [
        "bash",
        str(ROOT / "tools" / "dist_train.sh"),
        str(config),
        "2",
        "--work-dir",
        str(work_dir),
    ]
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


@pytest.mark.slow
def test_hyperclip_trains_in_two_processes_as_in_one(tmp_path):
    pytest.importorskip("open_clip")
    pytest.importorskip("mmseg")
    from helpers.open_vocabulary_segmentation import config, make_folder

    folder = make_folder(tmp_path / "own")
    for name, batch in (("one", 4), ("two", 2)):
        content = config(folder, head=dict(type="similarity"))
        content.train_dataloader.batch_size = batch
        content.train_dataloader.dataset.pipeline = [
            step for step in content.train_dataloader.dataset.pipeline if step.type != "RandomCrop"
        ]
        content.randomness = dict(seed=0)
        content.dump(str(tmp_path / f"{name}.py"))
    launch(tmp_path / "two.py", tmp_path / "two")
    train(tmp_path / "one.py", tmp_path / "one")
    one, two = (
        torch.load(tmp_path / name / "iter_2.pth", weights_only=False)["state_dict"]
        for name in ("one", "two")
    )
    blocks = [name for name in one if ".hyperclip." in name]
    eye = torch.eye(32)
    # queries and keys of the last image block are not used: dense features take its values alone
    assert len(blocks) == 30 and sum((one[name] - eye).abs().max() > 5e-4 for name in blocks) >= 28
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
