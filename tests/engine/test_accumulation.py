"""A run that goes on from a checkpoint between two steps of its optimiser ends where the
uninterrupted one does."""

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from helpers.language import make_text, small

from hypvision.engine.checkpoint import load_checkpoint_file
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

STEPS = 7


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def language(text, folder, count, interval):
    """Experts, whose loads are summed as the gradients are; the last step may have fewer
    iterations."""
    config = small("helm-mice-tiny_books.py", text, folder, **{
        "train_cfg.max_iters": STEPS, "train_cfg.val_interval": 100,
        "default_hooks.checkpoint.interval": interval,
        "default_hooks.checkpoint.max_keep_ckpts": -1, "optim_wrapper.accumulative_counts": count,
        "model.n_layers": 2,
    })  # fmt: skip
    config.default_hooks.checkpoint.pop("save_best")
    for name in ("val_dataloader", "val_evaluator", "val_cfg"):
        config.pop(name, None)
    config.train_cfg.pop("val_interval")
    return config


def goes_on(make, folder, names, whole=None):
    """Whether the run goes on from each of its checkpoints to the same end, in the last bit."""
    whole = whole or train(make(), folder / "whole")
    for name in names:
        place = folder / f"from {name}"
        place.mkdir()
        shutil.copy(Path(whole.work_dir) / name, place)
        again = train(make(), place, resume="auto")
        for (key, a), b in zip(whole.model.state_dict().items(), again.model.state_dict().values()):
            assert torch.equal(a, b), (name, key)
        states = [runner.optim_wrapper.optimizer.state_dict()["state"] for runner in (whole, again)]
        assert states[0].keys() == states[1].keys()
        for number, entry in states[0].items():
            assert all(torch.equal(entry[key], states[1][number][key]) for key in entry), (
                name,
                number,
            )


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    """A run whose steps take two iterations, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("run")
    return train(language(text, folder, 2, 1), folder / "run")


def test_a_checkpoint_within_an_accumulation(text, tmp_path, run):
    goes_on(lambda: language(text, tmp_path, 2, 1), tmp_path, ["iter_3.pth"], run)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, 5))
@pytest.mark.parametrize("interval", range(1, STEPS))
def test_every_interval_and_count(text, tmp_path, count, interval):
    names = [f"iter_{i}.pth" for i in range(interval, STEPS, interval)]
    goes_on(lambda: language(text, tmp_path, count, interval), tmp_path, names)


def test_epochs_that_end_within_an_accumulation(tmp_path):
    """Three iterations an epoch, of which a step takes two."""
    path = write_config(tmp_path / "config.py", make_images(tmp_path / "data"), epochs=2, drop=0.1)
    options = {"optim_wrapper.accumulative_counts": 2}
    goes_on(lambda: load_config(path, options), tmp_path, ["epoch_1.pth"])


def test_what_is_kept(text, tmp_path, run):
    folder = Path(run.work_dir)
    for step in range(1, STEPS + 1):
        content = load_checkpoint_file(folder / f"iter_{step}.pth")
        assert ("accumulated" in content) is (step % 2 == 1 and step < STEPS)
    content = load_checkpoint_file(folder / "iter_3.pth")
    next(iter(content["accumulated"][0]["gradients"].values())).fill_(float("nan"))
    torch.save(content, tmp_path / "wrong.pth")
    train(language(text, tmp_path, 3, 1), tmp_path / "other", resume=folder / "iter_3.pth")
    written = next((tmp_path / "other").glob("*/*.log")).read_text()
    assert "between two steps with accumulative_counts=[2], and the config has [3]" in written
    with pytest.raises(HypvisionError, match="accumulated is not finite"):
        train(language(text, tmp_path, 2, 1), tmp_path / "again", resume=tmp_path / "wrong.pth")
