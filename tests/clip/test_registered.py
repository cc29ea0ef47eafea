"""The CLIPs of this project by open_clip's own functions."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("open_clip")

import open_clip
from helpers.cases import each

import hypvision.clip  # noqa: F401 - registers the names
from hypvision.checkpoints.index import builtin_index
from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.models import ARCHITECTURES, create_clip
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


PRECISIONS = ["amp", "amp_bf16", "amp_bfloat16", "bf16", "fp16", "fp32", "pure_bf16", "pure_fp16"]


def check_precisions(name, precisions):
    plain = {key: ARCHITECTURES[name][key] for key in ("embed_dim", "vision_cfg", "text_cfg")}
    is_timm = "timm_model_name" in plain["vision_cfg"]
    for precision in precisions:
        model = open_clip.create_model(name, precision=precision)
        expected = open_clip.CLIP(**plain, cast_dtype=open_clip.get_cast_dtype(precision))
        open_clip.factory._set_model_device_and_precision(
            expected, torch.device("cpu"), precision, is_timm
        )
        dtypes = {key: value.dtype for key, value in model.state_dict().items()}
        theirs = {key: value.dtype for key, value in expected.state_dict().items()}
        own = ("curv", "visual_alpha", "textual_alpha", "logit_scale", "pixel_mean", "pixel_std")
        for key in own if name != "emoji-s16" else ():
            assert dtypes.pop(key) == torch.float32, (key, precision)
            theirs.pop(key, None)
        assert dtypes == theirs, precision


@each("name, precisions", [("emoji-s16", ["amp", "fp16"]), ("hycoclip-emoji-s16", ["pure_bf16"])])
def test_precisions_cast_as_open_clip_does(name, precisions):
    check_precisions(name, precisions)


@pytest.mark.slow
@each("name", ["emoji-s16", "hycoclip-emoji-s16", "meru-vit-s-16"])
def test_all_precisions_cast_as_open_clip_does(name):
    check_precisions(name, PRECISIONS)


@each("precision", ["bf16", "pure_bf16"])
def test_half_precision_embeds_nearly_the_same(precision):
    images = torch.randint(256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0))
    for name, tag in (("emoji-s16", "captions"), ("hycoclip-emoji-s16", "scenes")):
        exact = create_clip(name, f"zoo:{name}.{tag}")
        clip = create_clip(name, f"zoo:{name}.{tag}", precision=precision)
        found = clip.similarity(clip.embed_images(images), clip.embed_texts(["a cat", "a dog"]))
        expected = exact.similarity(
            exact.embed_images(images), exact.embed_texts(["a cat", "a dog"])
        )
        assert found.dtype == torch.float32
        assert torch.allclose(found, expected, rtol=0.03, atol=0.03), (name, found - expected)
        assert not torch.equal(found, expected)


@each("name", ["emoji-s16", "hycoclip-emoji-s16", "uncha-emoji-s16"])
def test_dicts_have_open_clips_keys(name):
    model = open_clip.create_model(name, output_dict=True)
    images = torch.rand(2, 3, 64, 64)
    tokens = open_clip.get_tokenizer(name)(["a cat", "a dog", "a bird"])
    with torch.no_grad():
        found = model(images, tokens)
        assert list(found) == ["image_features", "text_features", "logit_scale"]
        assert torch.equal(found["image_features"], model.encode_image(images, normalize=True))
        assert torch.equal(found["text_features"], model.encode_text(tokens, normalize=True))
        model.output_dict = False
        for value, other in zip(model(images, tokens), found.values()):
            assert torch.equal(value, other)
        if isinstance(model, HyperbolicCLIP):  # UNCHA's scale is another than CLIP's
            logits = model.space.logits(*found.values())
            assert torch.equal(logits, model.get_logits(images, tokens)[0])
        assert model(None, tokens)[0] is None and model(images)[1] is None


HARMLESS = [
    dict(jit=False, load_weights_only=True, weights_only=False, cache_dir="anywhere",
         pretrained_hf=True, pretrained_text=False, pretrained_image=True, force_custom_text=False),
    dict(pretrained_image_path=None, pretrained_text_path=None, pretrained_hf=None,
         init_logit_scale=2.5, force_quick_gelu=False, quick_gelu=False),
]  # fmt: skip
REFUSED = [
    ("emoji-s16", dict(force_custom_text=True)),
    ("emoji-s16", dict(pretrained_image_path="tower.pth")),
    ("emoji-s16", dict(pretrained_text_path="tower.pth")),
    ("emoji-s16", dict(precision="fp61")),
    ("emoji-s16", dict(require_pretrained=True)),
    ("meru-vit-s-16", dict(pretrained_image=True)),
    ("hycoclip-emoji-s16", dict(jit=True)),
    ("hycoclip-emoji-s16", dict(init_logit_bias=-10)),
    ("hycoclip-emoji-s16", dict(nonscalar_logit_scale=True)),
    ("uncha-emoji-s16", dict(init_logit_scale=2.5)),
]


@each("options", HARMLESS)
def test_arguments_that_change_nothing_are_accepted(options):
    for name, tag in (("emoji-s16", "captions"), ("hycoclip-emoji-s16", "scenes")):
        source = f"zoo:{name}.{tag}"
        model = open_clip.create_model(name, source, **options)
        expected = create_clip(name, source).model.state_dict()
        assert all(torch.equal(model.state_dict()[key], expected[key]) for key in expected)


@each("name, options", REFUSED)
def test_arguments_that_cannot_apply_say_why(name, options):
    (option,) = options
    named = "No weights" if option == "require_pretrained" else option
    with pytest.raises(HypvisionError, match=named) as told:
        open_clip.create_model(name, **options)
    assert "takes no option" not in str(told.value)


def test_a_plain_clip_is_scripted():
    source = "zoo:emoji-s16.captions"
    model, _, transform = open_clip.create_model_and_transforms("emoji-s16", source, jit=True)
    assert isinstance(model, torch.jit.ScriptModule)
    images = torch.rand(1, 3, 64, 64)
    expected = create_clip("emoji-s16", source).model.encode_image(images)
    assert torch.allclose(model.encode_image(images), expected, atol=1e-5)
    assert transform.transforms[0].size == 64


def test_weights_are_listed_and_required():
    tags = open_clip.list_pretrained_tags_by_model
    assert tags("meru-vit-s-16") == ["redcaps", "grit"] and not tags("atmg-vit-s-16")
    assert "zoo:emoji-s16.captions" in tags("emoji-s16") and "openai" in tags("ViT-B-32")
    with pytest.raises(HypvisionError, match="zoo:emoji-s16.captions"):
        open_clip.create_model_from_pretrained("emoji-s16")


def test_tokenizers_are_those_of_create_clip():
    texts = ["a cat", "a photo of " + "very " * 80 + "much"]
    for name in ("emoji-s16", "uncha-emoji-s16", "ViT-S-32-alt"):
        clip = create_clip(name, None)
        with pytest.warns(UserWarning, match="cut") if name != "ViT-S-32-alt" else nullcontext():
            expected = clip.tokenizer(texts)
            assert torch.equal(open_clip.get_tokenizer(name)(texts), expected)


def test_options_of_tokenizers_are_open_clips():
    plain = open_clip.SimpleTokenizer(clean="whitespace")
    tokenizer = open_clip.get_tokenizer("emoji-s16", cache_dir=None, clean="whitespace")
    assert torch.equal(tokenizer(["A  Cat"]), plain(["A  Cat"]))
    assert not torch.equal(tokenizer(["A  Cat"]), open_clip.get_tokenizer("emoji-s16")(["A  Cat"]))
    with pytest.raises(HypvisionError, match="'nonsense'.*clean"):
        open_clip.get_tokenizer("emoji-s16", nonsense=1)


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
