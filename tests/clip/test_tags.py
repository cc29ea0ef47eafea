"""All that open_clip knows of each set of weights reaches the model, its tokenizer and its images:
a walk over all."""

import inspect
import warnings

import numpy as np
import open_clip
import pytest
import torch
from helpers.cases import each
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import nn

from hypvision.clip.models import create_clip, image_size
from hypvision.data.preprocessing import Preprocessing, preprocessing_of
from hypvision.io.errors import HypvisionError

PAIRS = open_clip.list_pretrained()


class Recorded(nn.Module):
    """In place of a network: what it was asked to be."""

    def __init__(self, **config):
        super().__init__()
        self.config = config
        self.visual = nn.Module()
        self.visual.image_size = config["vision_cfg"]["image_size"]


class Tokenizer:
    def __init__(self, *arguments, **options):
        self.asked = (type(self).__name__, arguments, options)


@pytest.fixture
def recorded(monkeypatch):
    """open_clip with networks and tokenizers that only record how they are made, and nothing to
    download."""
    for name in ("CLIP", "CustomTextCLIP", "CoCa"):
        real = getattr(open_clip.factory, name)
        stub = type(name, (Recorded,), {"__signature__": inspect.signature(real)})
        for module in (open_clip.factory, open_clip):
            monkeypatch.setattr(module, name, stub)
    for name in ("HFTokenizer", "SimpleTokenizer", "SigLipTokenizer"):
        stub = type(name, (Tokenizer,), {})
        for module in (open_clip.factory, open_clip.tokenizer, open_clip):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stub)
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda *_, **__: "")


def made_by_open_clip(name, tag, **options):
    """The model, its test transform and its tokenizer as open_clip's own functions make them."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # "QuickGELU mismatch": then the network is not that of the weights
        if (name, tag) == (
            "roberta-ViT-B-32",
            "laion2b_s12b_b32k",
        ):  # the tag does not say what its model says
            warnings.simplefilter("ignore")
        model, _, transform = open_clip.create_model_and_transforms(
            name, tag, load_weights=False, **options
        )
    return model, transform, open_clip.get_tokenizer(name)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_everything_of_every_tag(recorded):
    assert len(PAIRS) >= 180
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8))
    quick, kinds = [], {}
    for name, tag in PAIRS:
        about = open_clip.get_pretrained_cfg(name, tag)
        needed = bool(about.get("quick_gelu") or open_clip.get_model_config(name).get("quick_gelu"))
        expected, transform, tokenizer = made_by_open_clip(name, tag, force_quick_gelu=needed)
        found = create_clip(name, tag, load_weights=False)
        assert type(found.model) is type(expected), name
        ours, theirs = ({**model.config, "quick_gelu": model.config.get("quick_gelu",
        False)} for model in
                        (found.model, expected))  # fmt: skip
        (
            ours["text_cfg"].pop("hf_model_pretrained", None),
            theirs["text_cfg"].pop("hf_model_pretrained", None),
        )
        assert ours == theirs and ours["quick_gelu"] == needed, (name, tag)
        if needed and not open_clip.get_model_config(name).get("quick_gelu"):
            quick.append((name, tag))
        preprocess = expected.visual.preprocess_cfg
        assert found.model.visual.preprocess_cfg == preprocess, (name, tag)
        assert found.mean == pytest.approx([255 * value for value in about["mean"]])
        assert found.std == pytest.approx([255 * value for value in about["std"]])
        view = preprocessing_of(found.model)
        assert (view.interpolation, view.resize_mode) == (
            about["interpolation"],
            about["resize_mode"],
        ), (name, tag)
        assert view.size == (preprocess["size"],) * 2 == (image_size(name),) * 2
        assert found.tokenizer.asked == tokenizer.asked, name
        kinds.setdefault(
            (view.interpolation, view.resize_mode, found.mean, view.size[0] // 200),
            (found, transform),
        )
    # By the table of open_clip 3.3: these would be given GELU by their names alone.
    assert sum(tag != "openai" for _, tag in quick) >= 18 and {tag for _, tag in quick} >= {
        "openai", "metaclip_400m", "metaclip_fullcc", "dfn2b", "dfn5b", "laion400m_e32", "yfcc15m",
        "cc12m"
    }  # fmt: skip
    assert ("ViT-B-32", "laion400m_e32") in quick and ("ViT-B-32", "laion2b_e16") not in quick
    for found, transform in kinds.values():  # an image through both
        mean, std = (torch.tensor(value)[:, None, None] for value in (found.mean, found.std))
        shown = (preprocessing_of(found.model)(image).float() - mean) / std
        assert torch.allclose(shown, transform(image), atol=1e-5)
    assert len(kinds) >= 8


def test_archives_that_are_not_from_openai_are_recognised():
    """The counts of the table that this project was measured with; a newer open_clip may have
    more."""
    about = [open_clip.get_pretrained_cfg(*pair) for pair in PAIRS]
    assert (
        sum((a["resize_mode"], a["interpolation"]) != ("shortest", "bicubic") for a in about) >= 57
    )


@each(
    "mode, interpolation", [("shortest", "bicubic"), ("longest", "bilinear"), ("squash", "bicubic")]
)
@each("shape", [(40, 56), (100, 64), (30, 30), (1, 90)])
def test_views_are_the_transforms_of_open_clip(mode, interpolation, shape):
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    options = dict(interpolation=interpolation, resize_mode=mode, fill_color=7)
    expected = image_transform_v2(
        PreprocessCfg(size=48, mean=(0.0,) * 3, std=(1.0,) * 3, **options), is_train=False
    )
    found = Preprocessing(48, **options)(Image.fromarray(pixels))
    assert found.dtype == torch.uint8 and found.shape == (3, 48, 48)
    assert torch.equal(found, (255 * expected(Image.fromarray(pixels))).round().byte())


def test_a_line_of_pixels_is_not_lost():
    """Its smaller side would become 0."""
    assert Preprocessing(48, resize_mode="longest")(Image.new("RGB", (900, 3), "white")).shape == (
        3,
        48,
        48,
    )


def test_views_that_there_are_not():
    for wrong in (dict(interpolation="lanczos"), dict(resize_mode="crop")):
        with pytest.raises(HypvisionError, match=f"{next(iter(wrong))} must be one of"):
            Preprocessing(**wrong)
    assert Preprocessing([8], interpolation="random") == Preprocessing((8, 8))
    assert Preprocessing((32, 48))(Image.new("RGB", (100, 50))).shape == (3, 32, 48)


# What the user asks for goes before what the weights need


def test_options_go_before_the_tag(recorded):
    given = dict(
        force_image_size=336,
        force_context_length=32,
        force_patch_dropout=0.5,
        init_logit_bias=-10.0,
    )
    own = dict(mean=(0.1,) * 3, interpolation="bilinear")
    found = create_clip(
        "ViT-B-32",
        "metaclip_400m",
        False,
        **given,
        force_preprocess_cfg=own,
        force_quick_gelu=False,
    )
    expected, *_ = made_by_open_clip("ViT-B-32", "laion2b_e16", **given)
    assert found.model.config == expected.config and not found.model.config.get("quick_gelu")
    view = preprocessing_of(found.model)
    assert view == Preprocessing(336, "bilinear", "shortest") and found.mean == pytest.approx(
        (25.5,) * 3
    )
    assert found.std == pytest.approx(
        [255 * v for v in open_clip.get_pretrained_cfg("ViT-B-32", "metaclip_400m")["std"]]
    )
    assert (
        found.tokenizer.asked[2]["context_length"] == 32
        and image_size("ViT-B-32", force_image_size=336) == 336
    )


@pytest.mark.parametrize("name", ["emoji-t8", "ViT-B-32", "coca_ViT-B-32"])
def test_options_that_do_not_apply_are_refused(recorded, name):
    for wrong in (
        dict(nonsense=3),
        dict(weights_only=False),
        dict(require_pretrained=True),
        dict(jit=True),
    ):
        with pytest.raises(
            HypvisionError,
            match=f"takes no option '{next(iter(wrong))}'.* It takes: .*force_image_size",
        ):
            create_clip(name, **wrong)
    with pytest.raises(HypvisionError, match="Did you mean force_quick_gelu"):
        create_clip(name, force_quickgelu=True)


SMALL = dict(layers=1, width=32)
TOO_LARGE = [
    (
        dict(vision_cfg=dict(image_size=64, patch_size=8, layers=10**6, width=32)),
        "layers in vision_cfg.*at most 1000",
    ),
    (dict(text_cfg=dict(heads=4, layers=1e6, width=32)), "layers in text_cfg.*at most 1000"),
    (
        dict(vision_cfg=dict(image_size=64, patch_size=8, layers=1, width=10**9)),
        "GiB of memory here.*Correct width",
    ),
    (dict(text_cfg=dict(heads=4, layers=1, width=10**9)), "GiB of memory here"),
    (dict(text_cfg=dict(heads=4, vocab_size=10**15, **SMALL)), "GiB of memory here"),
    (dict(force_context_length=10**15), "GiB of memory here"),
    (dict(force_image_size=10**9), "GiB of memory here"),
]


@each("options, match", TOO_LARGE)
def test_towers_that_exceed_the_memory_are_refused_before_they_are_built(options, match):
    with pytest.raises(HypvisionError, match=match):
        create_clip("emoji-t8", **options)


def test_weights_of_one_tower_are_for_models_without_weights(recorded):
    assert create_clip("ViT-B-32", pretrained_image=False).model is not None
    for option in ("pretrained_image", "pretrained_text", "pretrained_hf", "pretrained_image_path"):
        with pytest.raises(HypvisionError, match=f"takes no option '{option}'"):
            create_clip("ViT-B-32", "openai", False, **{option: "x"})


def test_options_of_this_project_s_models():
    for wrong in (dict(device="cpu"), dict(jit=True), dict(cache_dir="x")):
        with pytest.raises(
            HypvisionError, match=f"'emoji-t8' takes no option '{next(iter(wrong))}'"
        ):
            create_clip("emoji-t8", **wrong)
    with pytest.raises(HypvisionError, match="precision must be one of 'fp32', 'fp16'.*got 'fp61'"):
        create_clip("ViT-B-32", precision="fp61")
    options = dict(
        force_image_size=96, force_context_length=20, force_quick_gelu=True, init_logit_scale=1.0
    )
    clip = create_clip("emoji-t8", **options, force_preprocess_cfg=dict(resize_mode="squash"))
    assert clip.model.positional_embedding.shape == (20, 32) and clip.tokenizer(
        ["a cat"]
    ).shape == (1, 20)
    assert clip.model.visual.positional_embedding.shape == (145, 64) and clip.model.logit_scale == 1
    assert type(clip.model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert preprocessing_of(clip.model) == Preprocessing(96, resize_mode="squash")
    assert clip.model.encode_text(clip.tokenizer(["a cat"])).shape == (1, 64)


def test_no_weights_are_named_by_an_empty_text():
    """As open_clip's training script does."""
    assert isinstance(open_clip.create_model("emoji-t8", ""), torch.nn.Module)
    with pytest.raises(HypvisionError, match="No weights are named"):
        open_clip.create_model("emoji-t8", "", require_pretrained=True)
