"""The CLIPs of this project by open_clip's own functions."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("open_clip")

import open_clip

import hypvision.clip  # noqa: F401 - registers the names
from hypvision.checkpoints.index import builtin_index
from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.models import create_clip
from hypvision.io.errors import HypvisionError


def test_meru_comes_with_its_geometry_and_its_transform(caplog):
    model, train, transform = open_clip.create_model_and_transforms("meru-vit-s-16")
    assert isinstance(model, HyperbolicCLIP) and model.curv.requires_grad
    assert tuple(transform.transforms[-1].mean) == (0.485, 0.456, 0.406)
    with torch.no_grad():
        points = model.encode_image(torch.zeros(1, 3, 224, 224), normalize=True)
        tokens = open_clip.get_tokenizer("meru-vit-s-16")(["a cat"])
        assert tokens.shape == (1, 77) and not caplog.records  # open_clip does not know the name
        words = model.encode_text(tokens, normalize=True)
    for point in (points, words):  # on the hyperboloid of curvature -1 at first
        inner = point[:, 1:].square().sum() - point[:, 0].square().sum()
        assert inner == pytest.approx(-1, abs=1e-4)


def test_options_and_weights_are_those_of_create_clip():
    model = open_clip.create_model("emoji-s16", "zoo:emoji-s16.captions", output_dict=True)
    ours = create_clip("emoji-s16", "zoo:emoji-s16.captions").model
    assert model.output_dict
    for name, value in ours.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    with pytest.raises(HypvisionError, match="takes no option 'precision'"):
        open_clip.create_model("emoji-s16", precision="fp16")


def test_tokenizers_are_those_of_create_clip():
    texts = ["a cat", "a photo of " + "very " * 80 + "much"]
    for name in ("emoji-s16", "uncha-emoji-s16", "ViT-S-32-alt"):
        clip = create_clip(name, None)
        with pytest.warns(UserWarning, match="cut") if name != "ViT-S-32-alt" else nullcontext():
            expected = clip.tokenizer(texts)
            assert torch.equal(open_clip.get_tokenizer(name)(texts), expected)


def test_names_are_in_its_list():
    names = open_clip.list_models()
    assert {"meru-vit-s-16", "uncha-emoji-s16", "ViT-B-32"} < set(names)
    assert len(names) == len(set(names))


def test_other_models_are_open_clips():
    model = open_clip.create_model("ViT-S-32-alt", load_weights=False)
    assert type(model) is open_clip.CLIP
    with pytest.raises(RuntimeError, match="no-such-model"):
        open_clip.create_model("no-such-model")


@pytest.mark.parametrize("first", ["hypvision.clip", "open_clip"])
def test_the_order_of_imports_does_not_count(first):
    second = {"hypvision.clip": "open_clip", "open_clip": "hypvision.clip"}[first]
    code = (
        f"import {first}, {second}, open_clip\n"
        "print(type(open_clip.create_model('hycoclip-emoji-s16')).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "HyperbolicCLIP", done.stderr


def test_a_wrong_tag_names_the_records_of_the_zoo():
    shipped = [record for record in builtin_index() if record.task == "zero-shot"]
    assert shipped
    for record in shipped:
        tag = record.name.partition(".")[2]
        with pytest.raises(HypvisionError) as told:
            open_clip.create_model_and_transforms(record.model, pretrained=tag)
        assert f"zoo:{record.name}" in str(told.value), record.name
        others = {each.name for each in shipped if each.model != record.model}
        assert not any(name in str(told.value) for name in others)
