"""Official Hi-Mapper checkpoints: outputs of the reference, both directions, old names of Swin,
what is told."""

import pytest
import timm
import torch
from helpers.families import swin_mask
from references.himapper import ReferenceHiMapper

from hypvision.io.errors import HypvisionError
from hypvision.models.himapper_checkpoint import (
    himapper_from_official,
    himapper_to_official,
    himapper_variant,
)
from hypvision.zoo.convert import convert_file


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    return ReferenceHiMapper(timm.create_model("deit_tiny_patch16_224", num_classes=7), 192).eval()


def test_a_converted_file_gives_the_official_outputs(tmp_path, reference):
    weights = {f"module.{name}": value for name, value in reference.official_state_dict().items()}
    weights["module.last_l.Llinear.bias"] = torch.zeros(128)
    torch.save({"model": weights, "epoch": 3, "scaler": {}}, tmp_path / "in.pth")
    done = convert_file("himapper", tmp_path / "in.pth", tmp_path / "out.safetensors")
    assert (done.model, done.arguments) == (
        "himapper_deit_tiny_patch16_224", {"preset": "official", "num_classes": 7}
    )  # fmt: skip
    model = eval(done.usage(), {"timm": timm}).eval()
    x, noise = torch.randn(2, 3, 224, 224), reference.draws()
    with torch.no_grad():
        found, expected = model.forward_with_hierarchy(x, noise)["logits"], reference(x, noise)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_there_and_back(tmp_path, reference):
    official = reference.official_state_dict()
    torch.save(official, tmp_path / "in.pth")
    convert_file("himapper", tmp_path / "in.pth", tmp_path / "ours.pth")
    convert_file("himapper", tmp_path / "ours.pth", tmp_path / "back.pth", to_official=True)
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert set(back) == set(official)
    assert all(torch.equal(back[name], value) for name, value in official.items())
    # a classifier of our own training holds the network under "backbone."
    ours = torch.load(tmp_path / "ours.pth", weights_only=True)
    torch.save(
        {"state_dict": {f"backbone.{name}": v for name, v in ours.items()}},
        tmp_path / "trained.pth",
    )
    convert_file("himapper", tmp_path / "trained.pth", tmp_path / "again.pth", to_official=True)
    assert set(torch.load(tmp_path / "again.pth", weights_only=True)) == set(official)


@pytest.mark.parametrize(
    "backbone", [pytest.param("resnet50", marks=pytest.mark.slow), "swin_tiny_patch4_window7_224"]
)
def test_variants_are_recognised(backbone):
    model = timm.create_model(f"himapper_{backbone}", device="meta", leaves=16, levels=3)
    assert himapper_variant(model.state_dict()) == (
        f"himapper_{backbone}",
        {"leaves": 16, "levels": 3},
    )


@pytest.mark.slow
def test_a_backbone_with_a_twin_is_asked_for():
    model = timm.create_model(
        "himapper", backbone="tf_efficientnet_b4", device="meta", num_classes=5
    ).state_dict()
    with pytest.raises(
        HypvisionError, match="--backbone efficientnet_b4 or --backbone tf_efficientnet_b4"
    ):
        himapper_variant(model)
    arguments = {"num_classes": 5}
    assert himapper_variant(model, "efficientnet_b4") == ("himapper_efficientnet_b4", arguments)
    told = himapper_variant(model, "tf_efficientnet_b4")
    assert told == ("himapper", {"backbone": "tf_efficientnet_b4", **arguments})
    with pytest.raises(HypvisionError, match="not resnet50"):
        himapper_variant(model, "resnet50")
    with pytest.raises(HypvisionError, match="no backbone 'efficientnet_b44'"):
        himapper_variant(model, "efficientnet_b44")


@pytest.mark.slow
def test_distilled_backbones_are_recognised():
    name = "deit_tiny_distilled_patch16_224"
    model = timm.create_model("himapper", backbone=name, preset="official", device="meta")
    assert himapper_variant(model.state_dict()) == (
        "himapper",
        {"backbone": name, "preset": "official"},
    )


@pytest.mark.slow
def test_swin_of_old_timm():
    model = timm.create_model(
        "himapper_swin_tiny_patch4_window7_224", preset="official", device="meta"
    )
    official = himapper_to_official(model.state_dict())
    old = {}
    for name, value in official.items():
        if name.startswith("head.fc."):
            name = name.replace("head.fc.", "head.")
        elif ".downsample." in name:
            stage = int(name.split(".")[1])
            name = name.replace(f"layers.{stage}.", f"layers.{stage - 1}.")
        old[name] = value
    # An old Swin stores the place of each pixel of a window seen from another, and which are apart
    # in shifted windows.
    pixels = [(row, column) for row in range(7) for column in range(7)]
    places = [[13 * (a - c + 6) + b - d + 6 for c, d in pixels] for a, b in pixels]
    index, mask = "layers.0.blocks.0.attn.relative_position_index", "layers.0.blocks.1.attn_mask"
    old[index], old[mask] = torch.tensor(places), swin_mask(56, 7, 3)
    assert set(himapper_from_official(old)) == set(model.state_dict())
    for name in (index, mask):
        with pytest.raises(HypvisionError, match=name):
            himapper_from_official({**old, name: old[name].flip(0)})


def test_mistakes_are_explained(tmp_path, reference):
    official = reference.official_state_dict()
    proper = timm.create_model("himapper_deit_tiny_patch16_224", device="meta").state_dict()
    with pytest.raises(HypvisionError, match="lift='exp0'.*preset='official'"):
        himapper_to_official(proper)
    with pytest.raises(HypvisionError, match="no Hi-Mapper checkpoint has"):
        himapper_from_official(
            {**official, "mix_m.weight": torch.ones(1), "last_l.more": torch.ones(1)}
        )
    with pytest.raises(HypvisionError, match="no hypvision Hi-Mapper checkpoint"):
        himapper_to_official({"mapper.dense.out_proj.1.weight": torch.ones(1)})
    with pytest.raises(HypvisionError, match="only a part"):
        himapper_variant({"mapper.tree.mean": torch.ones(32, 8)})
    other = timm.create_model("himapper", backbone="resnet10t", device="meta", preset="official")
    with pytest.raises(HypvisionError, match="none of those that Hi-Mapper was published with"):
        himapper_variant(other.state_dict())
    torch.save(himapper_from_official(official), tmp_path / "ours.pth")
    with pytest.raises(HypvisionError, match="hypvision's names already"):
        convert_file("himapper", tmp_path / "ours.pth", tmp_path / "out.pth")
