"""A classifier of ``hypvision train`` used outside of the engine: the ways that the messages and
the README name."""

import pytest
import timm
import torch

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config

import hypvision
from hypvision.cli import main
from hypvision.engine.checkpoint import load_checkpoint_file
from hypvision.io.errors import HypvisionError
from hypvision.models.hcformer_checkpoint import hcformer_from_official
from hypvision.zoo.convert import convert_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The checkpoint of a real training, with its log."""
    folder = tmp_path_factory.mktemp("trained")
    data = make_images(folder / "data", per_class=2)
    config = write_config(folder / "config.py", data, model="hcformer_nano", batch=6)
    assert main(["train", str(config), "--work-dir", str(folder / "run")]) == 0
    return folder / "run" / "epoch_1.pth"


def weights(path):
    saved = load_checkpoint_file(path)
    assert "message_hub" in saved  # what bare torch.load(weights_only=True) refuses
    return {name.removeprefix("backbone."): value for name, value in saved["state_dict"].items()}


def test_load_it_by_its_path(trained):
    model = hypvision.load(trained, model="hcformer_nano", img_size=32)
    expected = weights(trained)
    assert (
        model.num_classes == 3 and not model.training and set(expected) == set(model.state_dict())
    )
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    # timm's own way takes the weights under the engine's names
    overlay = dict(state_dict=load_checkpoint_file(trained)["state_dict"], num_classes=3)
    arguments = dict(num_classes=3, img_size=32, pretrained=True, pretrained_cfg_overlay=overlay)
    other = timm.create_model("hcformer_nano", **arguments).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(other(x), model(x))


def test_what_does_not_fit_is_told(trained):
    for arguments, message in (
        (dict(), "does not name its model. Add the model: hypvision.load"),
        (dict(model="hcformer_nanoo"), "no model 'hcformer_nanoo'. Did you mean hcformer_nano"),
        (
            dict(model="hcformer_tiny", img_size=32),
            "does not fit the model 'hcformer_tiny': .*of another shape",
        ),
        (dict(model="test_vit"), "does not fit the model 'test_vit': .*missing in the file"),
        (dict(model="hcformer_nano", img_sice=32), "does not accept .*img_sice"),
        (
            dict(model="hcformer_nano", num_classes=5, img_size=32),
            r"head.weight \(3x224 instead of 5x224\)",
        ),
    ):
        with pytest.raises(HypvisionError, match=message):
            hypvision.load(trained, **arguments)
    with pytest.raises(HypvisionError, match="There is no checkpoint"):
        hypvision.load(trained.with_name("none.pth"), model="hcformer_nano")


def test_convert_it_to_the_official_names(trained, tmp_path):
    done = convert_file("hcformer", trained, tmp_path / "official.pth", to_official=True)
    official = torch.load(done.path, weights_only=True)
    assert (done.model, done.arguments) == ("hcformer_nano", {"num_classes": 3, "img_size": 32})
    assert "network.0.0.token_mixer.f.weight" in official
    back, expected = hcformer_from_official(official), weights(trained)
    assert set(back) == set(expected)
    assert all(torch.equal(back[name], expected[name]) for name in back)
