"""Language models in two processes: the steps are those of one, with whole weights and with cut
ones."""

import shutil

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import scalars
from helpers.language import make_text, small
from helpers.processes import run_in_two

from hypvision.engine.run import train


def config_of(folder, batch, **changes):
    """Three steps of two iterations; the same samples in one process with twice the batch."""
    config = small("helm-mice-tiny_books.py", folder / "text", folder)
    config.update(changes)
    config.train_dataloader.batch_size = batch
    config.optim_wrapper.accumulative_counts = 2  # the checkpoint of iteration 3 is within a step
    config.model.aux_alpha = (
        0.0  # of the loads in a process: a product of means is no mean of products
    )
    return config


WORKER = """
import os, shutil
from pathlib import Path
import torch.distributed as dist
import hypvision.data.language
from hypvision.engine.run import train
from test_language_processes import config_of

if os.environ["RANK"] == "1":
    hypvision.data.language._write_tokens = None  # the first process does it for both
folder = Path(os.environ["RUNS"])
cut = dict(runner_type="ShardedRunner")
train(config_of(folder, 1), folder / "whole", launcher="pytorch")
train(config_of(folder, 1, **cut), folder / "cut", launcher="pytorch")
for name, options in (("whole", {}), ("cut", cut)):
    again = folder / f"{name} again"
    if dist.get_rank() == 0:  # as if it had been killed after the third iteration
        again.mkdir()
        shutil.copy(folder / name / "iter_3.pth", again)
    dist.barrier()
    train(config_of(folder, 1, **options), again, resume="auto", launcher="pytorch")
dist.destroy_process_group()
"""


def saved(folder, step=6):
    content = torch.load(folder / f"iter_{step}.pth", weights_only=False)
    states = {
        f"{i} {name}": t
        for i, entry in content["optimizer"]["state"].items()
        for name, t in entry.items()
    }
    return content["state_dict"], states


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    make_text(tmp_path / "text")
    train(config_of(tmp_path, 2), tmp_path / "one")
    shutil.rmtree(tmp_path / "tokens")
    monkeypatch.setenv("RUNS", str(tmp_path))
    run_in_two(WORKER, tmp_path, __file__)
    one = saved(tmp_path / "one")
    for name in ("whole", "cut"):
        for expected, found in zip(one, saved(tmp_path / name)):
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, rtol=1e-2, atol=1e-4)
        for key in ("bits_per_byte", "grad_norm"):
            assert scalars(tmp_path / name, key) == pytest.approx(
                scalars(tmp_path / "one", key), rel=1e-3
            )
        # an interrupted one goes on to the last bit, and in one process on the same way
        for whole, again in zip(saved(tmp_path / name), saved(tmp_path / f"{name} again")):
            assert all(torch.equal(again[key], value) for key, value in whole.items())
        alone = tmp_path / f"{name} alone"
        alone.mkdir()
        shutil.copy(tmp_path / name / "iter_3.pth", alone)
        train(config_of(tmp_path, 2), alone, resume="auto")
        for key, value in saved(alone)[0].items():
            torch.testing.assert_close(value, one[0][key], rtol=1e-2, atol=1e-4)
