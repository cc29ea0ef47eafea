"""Robustness of a classifier: areas by counting pairs, damage by its moments, the tool on drawn
images."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

ROOT = Path(__file__).parents[2]
SMALL = "configs/hecnn/hcnn-resnet18-small_3e_cifar10.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("robustness", ROOT / "studies/robustness.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_area_is_the_share_of_pairs(tool):
    known, unknown = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([2.0, 0.0, 5.0])
    pairs = [1.0 if k > u else 0.5 if k == u else 0.0 for k in known for u in unknown]
    assert tool.auroc(known, unknown) == pytest.approx(sum(pairs) / len(pairs))
    assert tool.auroc(unknown, known) == pytest.approx(1 - sum(pairs) / len(pairs))


def test_noise_has_the_deviation_that_it_names_in_every_channel(tool):
    images, std = torch.zeros(4, 3, 64, 64), (0.25, 0.5, 1.0)
    added = tool.damaged(images, std)["noise"]
    assert torch.allclose(added.std((0, 2, 3)), tool.NOISE / torch.tensor(std), rtol=0.05)
    assert torch.equal(added, tool.damaged(images, std)["noise"])  # the same for every network


def test_a_blurred_point_is_a_gaussian(tool):
    images = torch.zeros(1, 3, 21, 21)
    images[..., 10, 10] = 1
    blurred = tool.damaged(images, (1, 1, 1))["blur"][0, 0]
    place = torch.arange(21.0) - 10
    assert blurred.sum().item() == pytest.approx(1, abs=1e-5)
    assert (blurred.sum(0) * place**2).sum().item() == pytest.approx(tool.BLUR**2, rel=0.03)


@pytest.mark.parametrize("name", ["hcnn_resnet18", "hecnn_resnet18"])
def test_norms_of_pooled_features_have_the_order_of_the_radii(tool, name):
    network = timm.create_model(name, num_classes=3, stem="imagenet", widths=(8, 8, 8, 8)).eval()
    images = torch.randn(16, 3, 32, 32)
    _, found = tool.scores(network, images)
    with torch.no_grad():
        points = network.head_enter(
            network.forward_head(network.forward_features(images), pre_logits=True)
        )
    radii = torch.asinh(points.norm(dim=1))  # up to the curvature, which all of them share
    assert (radii[found["norm"].argsort()].diff() > -1e-6).all()
    assert radii.std() > 1e-4


def folder(path, count, rng):
    path.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path / f"{i}.png")


def test_the_tool_measures_a_checkpoint(tool, monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in "ab":
        folder(tmp_path / "cifar10/test" / name, 3, rng)
    folder(tmp_path / "letters/images/deep", 5, rng)
    (tmp_path / "empty").mkdir()
    network = timm.create_model(
        "hcnn_resnet18", num_classes=2, stem="imagenet", widths=(8, 8, 8, 8), pretrained=False
    )
    torch.save(
        {"state_dict": {f"backbone.{key}": value for key, value in network.state_dict().items()}},
        tmp_path / "w.pth",
    )
    options = [
        f"data_root={tmp_path / 'cifar10'}",
        "model.backbone.widths=(8,8,8,8)",
        "model.backbone.num_classes=2",
    ]
    options += ["test_dataloader.num_workers=0", "test_dataloader.persistent_workers=False"]

    def call(*outliers):
        words = ["robustness.py", ROOT / SMALL, tmp_path / "w.pth", "--images", 6]
        words += ["--outliers", *outliers]
        monkeypatch.setattr(sys, "argv", [*map(str, words), "--cfg-options", *options])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "studies/robustness.py"), run_name="__main__")
        return end.value.code, capsys.readouterr()

    code, said = call(tmp_path / "letters/images", tmp_path / "cifar10/test")
    found = json.loads(said.out[said.out.index("{") :])
    assert code == 0
    assert list(found)[:3] == ["top1_clean", "top1_noise", "top1_blur"]
    assert {key for key in found if "logit" in key} == {"auroc_logit_letters", "auroc_logit_test"}
    for way in ("logit", "norm"):
        assert found[f"auroc_{way}_test"] == pytest.approx(0.5)  # the same images
        assert 0 <= found[f"auroc_{way}_letters"] <= 1
    code, said = call(tmp_path / "letters/images", tmp_path / "letters")
    assert code == 2 and "several folders are called 'letters'" in said.err
    code, said = call(tmp_path / "empty")
    assert code == 2 and "no PNG or JPEG images below" in said.err
