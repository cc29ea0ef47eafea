"""How far a picture lies from the classes of a training: by hand, in checkpoints and in
predictions."""

import json
import re

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.cases import each

import hypvision.models  # noqa: F401 - registers the models
from hypvision.inference.knowledge import Known
from hypvision.inference.predictors import classifier
from hypvision.io.errors import HypvisionError
from hypvision.tasks.probe import level_inputs
from hypvision.zoo.familiar import (
    KEY,
    Familiar,
    NoLevels,
    familiar_of,
    fit,
    in_header,
    level_features,
    levels_of,
    of_header,
    written,
)


def test_the_distance_is_that_of_the_nearest_class():
    found = Familiar(torch.tensor([[2.0, 0.0], [0.0, 0.5]]), 0.1, 0.0)
    features = torch.tensor([[5.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(
        found.distances(features), torch.tensor([0.0, 1 - 0.5**0.5, 1.0, 0.2])
    )


def test_the_limit_holds_back_a_twentieth_of_the_held_out_images():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4

    def draw(count):
        return 3 * torch.eye(4, 16)[labels[:count]] + torch.randn(count, 16, generator=generator)

    features = draw(400)
    found = fit(features, labels, draw(400))
    torch.testing.assert_close(found.means[2], features[labels == 2].mean(0))
    beyond = (found.distances(draw(400)) > found.limit).float().mean().item()
    assert 0.01 < beyond < 0.12 and 0.01 < found.false_alarms < 0.12
    far = torch.randn(400, 16, generator=generator)
    assert (found.distances(far) > found.limit).float().mean() > 0.5


NAN = torch.tensor([[1.0, float("nan"), 1.0]])


@each(
    "change, said",
    [
        (dict(means=[1.0]), "means must be a tensor of floats (C, D)"),
        (dict(means=None), "means must be a tensor of floats (C, D)"),
        (dict(means=torch.ones(3)), "means must be a tensor of floats (C, D)"),
        (dict(means=torch.ones(2, 2).long()), "means must be a tensor of floats (C, D)"),
        (dict(means=torch.ones(0, 3)), "means must be finite numbers"),
        (dict(means=NAN), "means must be finite numbers"),
        (dict(means=NAN.nan_to_num(float("inf"))), "means must be finite numbers"),
        (dict(limit="0.1"), "limit must be a finite number from -0.001 to 2.001, got '0.1'"),
        (dict(limit=float("nan")), "limit must be a finite number from -0.001 to 2.001, got nan"),
        (dict(limit=3.0), "got 3.0"),
        (dict(limit=True), "got True"),
        (dict(false_alarms=float("inf")), "false_alarms must be a finite number from 0 to 1"),
        (dict(false_alarms=None), "false_alarms must be a finite number from 0 to 1, got None"),
    ],
)
def test_other_content_of_a_checkpoint_is_told(change, said):
    right = written(Familiar(torch.ones(2, 3), 0.1, 0.05))
    found = familiar_of(dict(meta={KEY: right}))
    assert torch.equal(found.means, torch.ones(2, 3))
    with pytest.raises(HypvisionError, match=re.escape(said)) as told:
        familiar_of(dict(meta={KEY: {**right, **change}}), "best.pth")
    assert str(told.value).startswith("'best.pth' does not say what images the model knows")
    if "means" not in change or isinstance(change["means"], torch.Tensor):
        with pytest.raises(HypvisionError, match=re.escape(said)):
            in_header(Familiar(**{**right, **change}))


@each(
    "content",
    [{}, dict(meta=None), dict(meta={}), dict(meta={KEY: None}), dict(meta=dict(familiar=7))],
)
def test_a_checkpoint_without_it_is_fine(content):
    assert familiar_of(content) is None


@each("content", [[1], "text", 7, {}])
def test_what_is_no_table_is_told(content):
    for read, place in (
        (familiar_of, dict(meta={KEY: content})),
        (of_header, {KEY: content}),
    ):
        with pytest.raises(HypvisionError, match="does not say what images the model knows"):
            read(place)


@each("held_out", [0, 1])
def test_too_few_images_set_no_limit(held_out):
    with pytest.raises(HypvisionError, match=f"{held_out} held-out images are too few"):
        fit(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), torch.ones(held_out, 3))


def test_means_of_another_width_are_told_before_the_first_image():
    known = Known(("a", "b"), "the weights best.pth", familiar=Familiar(torch.ones(2, 3), 0.1, 0.0))
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 1))
    network.feature_info = [dict(module="0", num_chs=5)]
    with pytest.raises(
        HypvisionError, match=r"has 5 features, but .* with 3 \(the weights best.pth"
    ):
        classifier(None, None, known, "cpu", judged=network)
    network.feature_info[0]["num_chs"] = 3
    classifier(None, None, known, "cpu", judged=network)


def test_from_a_training_to_a_warning(tmp_path, capsys):
    pytest.importorskip("mmengine")
    from helpers.engine import make_images, write_config
    from PIL import Image

    from hypvision.cli import main

    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data"), epochs=4)
    text = "\ndefault_hooks.update(checkpoint=dict(save_best='top1', rule='greater'))\n"
    config.write_text(config.read_text() + text)
    work = tmp_path / "run"
    assert main(["train", str(config), "--work-dir", str(work)]) == 0
    (best,) = work.glob("best_*.pth")
    holding = [
        path.name
        for path in work.glob("*.pth")
        if KEY in torch.load(path, weights_only=False)["meta"]
    ]
    assert sorted(holding) == sorted([best.name, "epoch_4.pth"])
    # the stored means are those of the network
    found = familiar_of(torch.load(best, weights_only=False))
    assert found.means.shape[0] == 3 and 0 < found.limit < 1

    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    own = tmp_path / "data/train/red/0.png"
    for model in (str(config), "test_vit"):
        out = tmp_path / "predicted" / model.rpartition("/")[2]
        words = f"predict {own} {tmp_path / 'stripes.png'} --model {model} --weights {best}".split()
        assert main([*words, "--out", str(out)]) == 0
        told = capsys.readouterr().err
        rows = json.loads((out / "predictions.json").read_text())["annotations"]
        places = {row["image_id"]: (row["distance"], row["foreign"]) for row in rows}
        (near, _), (far, foreign) = (places[key] for key in sorted(places))
        assert near < found.limit < far and foreign
        assert f"('stripes.png' ({far:.2f})): unlike anything the model was trained on" in told


NETWORKS = (
    "resnet10t", "test_vit", "test_convnext", "tf_efficientnet_lite0", "hcformer_nano",
    "hecnn_resnet18", "hcnn_resnet18", "himapper_resnet50",
)  # fmt: skip


def test_levels_of_tuples_and_of_other_axes():
    """PiT's levels are tuples, by which images cannot be compared; HexFormer's tokens come last."""
    images = torch.randn(2, 3, 224, 224)
    with pytest.raises(NoLevels, match="PoolingVisionTransformer"):
        level_inputs(timm.create_model("pit_ti_224", num_classes=2), [images])
    network = timm.create_model("hexformer_tiny", num_classes=2)
    width = sum(channels for _, channels in levels_of(network))
    assert level_inputs(network, [images]).shape == (2, width)


@pytest.mark.parametrize("name", NETWORKS)
def test_levels_by_hand(name):
    """Of convolutions, tokens and points of a hyperboloid: means over places, from what timm's
    forward_intermediates gives, and as wide as the network says."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=2).eval()
    side = network.pretrained_cfg["input_size"][-1] if name == "test_vit" else 64
    images = torch.randn(2, 3, side, side)
    with torch.no_grad(), level_features(network) as found:
        network(images)
        network(images[:1])
    levels = levels_of(network)
    assert 2 <= len(levels) <= 5
    assert [len(each) for each in found] == [2, 1]
    widths = [channels for _, channels in levels]
    assert found[0].shape[1] == sum(widths)
    parts = found[0].split(widths, dim=1)
    for part in parts:
        torch.testing.assert_close(part.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(found[0][:1], found[1], atol=1e-4, rtol=1e-3)
    if name in ("resnet10t", "test_convnext", "tf_efficientnet_lite0"):
        with torch.no_grad():
            maps = network.forward_intermediates(images, intermediates_only=True)
        for part, expected in zip(parts, maps):
            torch.testing.assert_close(part, F.normalize(expected.mean((2, 3)), dim=1))


def test_deep_transformers_have_five_levels():
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    places = [network.blocks[place] for place in (0, 3, 6, 8, 11)]
    assert [module for module, _ in levels_of(network)] == places
    with level_features(None) as none:
        assert none == []
