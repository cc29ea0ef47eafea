"""Configs of Hi-Mapper build and take a step; its backbones in segmenters and detectors."""

import pytest
import timm
import torch
from helpers.configs import ROOT, data, shrink  # noqa: F401 - a fixture

from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.backbone import TimmBackbone
from hypvision.openmmlab.backbone_losses import backbone_losses
from hypvision.openmmlab.pyramid import SimpleFeaturePyramid

# a config that ends in _imagenet has no training
CONFIGS = sorted(
    path.name for path in (ROOT / "himapper").glob("*.py") if not path.stem.endswith("_imagenet")
)
QUICK = ("himapper-vit-micro_150i_cifar10.py",)  # the others are slow


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in CONFIGS]
)
def test_config_takes_a_step(name, data, tmp_path):  # noqa: F811
    config = shrink(ROOT / "himapper" / name, name, data)
    config.load_from = None
    config.model.pop("checkpoint", None)
    backbone, small = config.model.backbone, {}
    if "in1k" in name:
        backbone.pretrained = False
        config.val_dataloader.dataset.transform.input_size = 64
        config.val_dataloader.update(
            num_workers=0, persistent_workers=False, batch_size=2, prefetch_factor=None
        )
        small = {} if "resnet" in name or "efficientnet" in name else dict(img_size=64)
        small.update(dict(window_size=2) if "swin" in name else {})
    elif "deit" in name:  # one step shows what twelve blocks of 800 x 1333 pixels would
        small = dict(img_size=64)
    backbone.update(small)
    for key in ("decode_head", "auxiliary_head"):
        if key in config.model:
            config.model[key].channels = 32
    runner = train(config, tmp_path)
    assert runner.iter == 1
    scalars = runner.message_hub.log_scalars
    assert scalars["train/loss"].current() > 0
    assert ("train/loss_contrastive" in scalars) == (
        name.startswith("himapper") or "-aux-" in name or "-fuse-" in name
    )


SMALL = dict(model_name="himapper", backbone="vit_tiny_patch16_224", img_size=32, patch_size=8,
embed_dim=48, depth=2,
             num_heads=2)  # fmt: skip


def test_weights_of_a_classifier_reach_the_backbone(tmp_path):
    arguments = {k: v for k, v in SMALL.items() if k != "model_name"}
    classifier = timm.create_model("himapper", num_classes=5, **arguments)
    torch.save(
        {"state_dict": {f"backbone.{n}": v for n, v in classifier.state_dict().items()}},
        tmp_path / "whole.pth",
    )
    torch.save(classifier.trunk.state_dict(), tmp_path / "bare.pth")
    for dense in ("init", "fuse", "aux"):
        for file in ("whole.pth", "bare.pth"):
            backbone = TimmBackbone(
                **SMALL, dense=dense, out_indices=(0, 1), checkpoint_path=str(tmp_path / file)
            )
            mine = backbone.timm_model.model
            assert torch.equal(mine.trunk.pos_embed, classifier.trunk.pos_embed)
            if dense != "init":
                same = torch.equal(mine.mapper.tree.mean, classifier.mapper.tree.mean)
                assert same == (file == "whole.pth")
    maps = backbone(torch.randn(1, 3, 40, 56))
    assert [tuple(level.shape[1:]) for level in maps] == [(48, 5, 7)] * 2


@pytest.mark.quick("resnet10t-init")
@pytest.mark.parametrize(
    ("source", "dense"),
    [
        ("resnet10t", "init"),
        ("resnet34", "fuse"),
        *(pytest.param(name, "init", marks=pytest.mark.slow) for name in ("resnet26", "resnet34")),
    ],
)
def test_weights_of_another_backbone_are_refused(tmp_path, source, dense):
    """Though some of their names and shapes agree."""
    torch.save(timm.create_model(source, num_classes=5).state_dict(), tmp_path / "c.pth")
    with pytest.raises(HypvisionError, match=r"c\.pth' does not fit"):
        TimmBackbone(
            "himapper",
            (1, 2, 3, 4),
            backbone="resnet18",
            dense=dense,
            checkpoint_path=str(tmp_path / "c.pth"),
        )
    overlay = dict(file=str(tmp_path / "c.pth"), num_classes=5)
    with pytest.raises(RuntimeError, match="size mismatch|key"):
        timm.create_model(
            "himapper",
            backbone="resnet18",
            num_classes=5,
            pretrained=True,
            pretrained_cfg_overlay=overlay,
        )


def test_losses_of_the_backbone():
    backbone = TimmBackbone(**SMALL, dense="aux", out_indices=(1,))
    backbone(torch.randn(1, 3, 32, 32))
    losses = backbone_losses(backbone)
    assert set(losses) == {"loss_contrastive", "loss_kl"} and backbone_losses(backbone) == {}
    with pytest.raises(HypvisionError, match="no losses of its own"):
        backbone_losses(torch.nn.Linear(1, 1))


def test_pyramid():
    neck = SimpleFeaturePyramid([8, 16], out_channels=12, num_outs=5)
    maps = neck([torch.randn(2, 8, 6, 10), torch.randn(2, 16, 6, 10)])
    assert [tuple(level.shape) for level in maps] == [
        (2, 12, 24, 40), (2, 12, 12, 20), (2, 12, 6, 10), (2, 12, 3, 5), (2, 12, 2, 3)
    ]  # fmt: skip
    for arguments in (dict(scales=(8, 1)), dict(num_outs=2)):
        with pytest.raises(HypvisionError, match="scales out of"):
            SimpleFeaturePyramid([16], **arguments)
