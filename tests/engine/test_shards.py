"""A classifier on shards with labels, by epochs: it ends, resumes as if it had not been cut, and
can be looked at."""

import io
import re
import tarfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("webdataset")
from helpers.engine import make_images, write_config
from mmengine.registry import DATASETS

from hypvision.cli import main
from hypvision.data.write_shards import write_shards
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks import ImageClassifier


@pytest.fixture
def config(tmp_path):
    """A function that gives the config of a training of so many epochs, on three shards of six
    images."""
    make_images(tmp_path / "data", per_class=6)
    for part in ("train", "val"):
        write_shards(tmp_path / "data" / part, tmp_path / "shards" / part, samples=6)

    def make(epochs, workers=0):
        config = load_config(write_config(tmp_path / "mine.py", tmp_path / "data", epochs=2))
        for part in ("train", "val"):
            data = dict(
                type="ImageShards",
                shards=str(tmp_path / "shards" / part),
                transform=dict(input_size=32),
            )
            loader = config[f"{part}_dataloader"]
            loader.batch_size, loader.sampler, loader.dataset = 4, None, data
        config.train_dataloader.num_workers = workers
        config.train_dataloader.dataset.transform.update(is_training=True, hflip=0.5)
        config.val_dataloader.dataset.shuffle = 0
        config.test_dataloader = config.val_dataloader
        config.train_cfg.max_epochs = epochs
        return config

    return make


def test_an_epoch_ends(config, tmp_path):
    runner = train(config(1), tmp_path / "work")
    assert runner.epoch == 1 and runner.iter == 5  # of 18 images, four at a time
    assert len(runner.val_dataloader.dataset) == 18
    assert 0 <= runner.message_hub.get_scalar("val/top1").current() <= 100


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_training_gets_the_same_data_as_an_uninterrupted_one(config, tmp_path, workers):
    whole = train(config(2, workers), tmp_path / "whole")
    train(config(1, workers), tmp_path / "cut")
    again = train(config(2, workers), tmp_path / "cut", resume="auto")
    assert whole.iter == again.iter == 10
    for x, y in zip(whole.model.parameters(), again.model.parameters()):
        assert torch.allclose(x, y, atol=1e-5)


def test_faults_of_shards_are_reported_at_once(config, tmp_path, capsys):
    path = tmp_path / "shards/train/000001.tar"
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    broken = [member.name for member, _ in members if member.name.endswith("png")][1:3]
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            data = b"no picture" if member.name in broken else data
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    config(1).dump(tmp_path / "mine.py")
    words = f"check {tmp_path / 'mine.py'} --all --out {tmp_path / 'seen'} --workers".split()
    for workers in "02":
        with pytest.raises(SystemExit):
            main([*words, workers])
        told = capsys.readouterr().out
        for name in broken:
            assert (
                f"The sample '{name.partition('.')[0]}' of the shard '{path}' cannot be read"
                in told
            )
        assert "All 36 samples were read; 2 faults" in told
    assert len([*(tmp_path / "seen").glob("train_*.png")]) == 5


def test_the_pieces_of_own_folders_read_shards(tmp_path):
    """The block of docs/data.md, with names in the files ``.cls``."""
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    (block,) = re.findall(r"```python\n(view = .*?)```", page, flags=re.S)
    pieces = ("datasets/own_folders", "default_runtime")
    bases = [f"hypvision::_base_/{name}.py" for name in pieces]
    (tmp_path / "mine.py").write_text(f"_base_ = {bases}\nmodel = dict(type='x')\n{block}")
    config = load_config(tmp_path / "mine.py")
    for part in ("train", "val", "test"):
        assert DATASETS.get(config.dataset(part).type).__name__ == "ImageShards"
        assert config[f"{part}_dataloader"].collate_fn.type == "default_collate"
        assert config[f"{part}_dataloader"].sampler is None
    model = ImageClassifier(dict(model_name="test_vit", num_classes=3))
    with pytest.raises(HypvisionError, match="collate_fn="):
        model.check_channels([torch.ones(3, 8, 8)])
