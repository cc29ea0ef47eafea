"""Language models in two processes: as many steps as in one, with whole or cut weights."""

import os
import socket
import subprocess
import sys

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import ROOT, scalars
from helpers.language import make_text, small

from hypvision.engine.run import train


def launch(config, work_dir, *words):
    """Train in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, PYTHON=sys.executable, PORT=str(port), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    command = ["bash", str(ROOT / "tools" / "dist_train.sh"), str(config), "2", "--work-dir", str(work_dir), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]


def written(text, folder, name, batch, **changes):
    config = small("helm-mice-tiny_books.py", text, folder)
    config.update(changes)
    config.train_dataloader.batch_size = batch
    config.model.aux_alpha = 0.0  # of the loads in a process: a product of means is no mean of products
    config.dump(folder / name)
    return folder / name


def weights(folder, step=6):
    return torch.load(folder / f"iter_{step}.pth", weights_only=False)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    text = make_text(tmp_path)
    train(written(text, tmp_path, "one.py", 2), tmp_path / "one")
    launch(written(text, tmp_path, "ddp.py", 1), tmp_path / "ddp")
    cut = written(text, tmp_path, "cut.py", 1, runner_type="ShardedRunner")
    launch(cut, tmp_path / "cut")
    one = weights(tmp_path / "one")
    for name in ("ddp", "cut"):
        two = weights(tmp_path / name)
        assert two["state_dict"].keys() == one["state_dict"].keys()
        for key, value in one["state_dict"].items():
            torch.testing.assert_close(two["state_dict"][key], value, rtol=1e-3, atol=1e-4, msg=f"{name} {key}")
        for number, entry in one["optimizer"]["state"].items():
            for key, value in entry.items():
                torch.testing.assert_close(
                    two["optimizer"]["state"][number][key], value, rtol=1e-2, atol=1e-5, msg=f"{name} {number} {key}"
                )
        assert scalars(tmp_path / name, "bits_per_byte") == pytest.approx(
            scalars(tmp_path / "one", "bits_per_byte"), abs=1e-3
        )
        assert scalars(tmp_path / name, "grad_norm") == pytest.approx(scalars(tmp_path / "one", "grad_norm"), rel=1e-3)
    # killed after the third step: with cut weights it goes on to the last bit, and in one process on the same way
    for folder in ("again", "alone"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "iter_3.pth").write_bytes((tmp_path / "cut/iter_3.pth").read_bytes())
    launch(cut, tmp_path / "again", "--resume")
    expected = weights(tmp_path / "cut")["state_dict"]
    again = weights(tmp_path / "again")["state_dict"]
    assert all(torch.equal(again[key], value) for key, value in expected.items())
    train(tmp_path / "one.py", tmp_path / "alone", resume="auto")
    for key, value in weights(tmp_path / "alone")["state_dict"].items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4, msg=key)
