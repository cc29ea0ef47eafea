"""Batches of one image, of which batch norms have no statistics, and batch norms of CPU
processes."""

import logging

import pytest
import torch
from helpers.cases import each
from mmengine.config import Config
from mmengine.runner import EpochBasedTrainLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hypvision.data import shards
from hypvision.engine.checks import explain
from hypvision.engine.config import _norm_apart
from hypvision.engine.run import drop_single_image
from hypvision.io.errors import HypvisionError


def loop_of(images, batch):
    loop = object.__new__(EpochBasedTrainLoop)
    loop.dataloader = DataLoader(TensorDataset(torch.zeros(images, 3)), batch)
    loop._max_epochs = 3
    loop._max_iters = 3 * len(loop.dataloader)
    return loop


NORMED = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


@each(
    "images, batch, network, batches",
    [
        (21, 4, NORMED, 5),
        (22, 4, NORMED, 6),
        (20, 4, NORMED, 5),
        (1, 4, NORMED, 1),
        (21, 4, nn.Linear(3, 3), 6),
    ],
)
def test_a_last_batch_of_one_image_is_left_out(images, batch, network, batches):
    loop = loop_of(images, batch)
    drop_single_image(loop, network.train())
    assert len(loop.dataloader) == len(list(loop.dataloader)) == batches
    assert loop.max_iters == 3 * batches


def test_batches_of_one_image_are_told_before_the_first_step(caplog):
    loop = loop_of(21, 1)
    with caplog.at_level(logging.WARNING):
        drop_single_image(loop, NORMED.eval())
        assert not caplog.text
        drop_single_image(loop, NORMED.train())
    assert "Each batch is one image, and the model trains 1 batch norms" in caplog.text
    assert len(loop.dataloader) == 21
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        NORMED.train()(torch.zeros(1, 3))
    assert "batches of 2 images or more" in explain(caught.value)


def test_norms_of_cpu_processes_are_apart(caplog):
    config = Config(
        dict(
            sync_bn="torch",
            model=dict(backbone=dict(norm_cfg=dict(type="SyncBN")), heads=[dict(type="LN")]),
        )
    )
    with caplog.at_level(logging.WARNING):
        _norm_apart(config)
    assert config.get("sync_bn") is None and config.model.backbone.norm_cfg.type == "BN"
    assert "between GPUs only" in caplog.text


def test_validation_on_shards_is_refused_before_a_distributed_training(monkeypatch):
    monkeypatch.setattr(shards, "get_dist_info", lambda: (0, 2))
    with pytest.raises(HypvisionError, match="on shards must run in a single process"):
        shards._Shards("nothing", None, shuffle=0, seed=0)
    with pytest.raises(HypvisionError, match="nothing"):
        shards._Shards("nothing", None, shuffle=10, seed=0)
