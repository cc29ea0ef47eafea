"""CLIP models by the place where they lie, with open_clip's own functions as the truth; and files
in other sizes."""

import json

import huggingface_hub.constants
import numpy as np
import open_clip
import pytest
import torch
from helpers import clip_repository
from PIL import Image
from safetensors.torch import save_file

import hypvision
from hypvision.cli import main
from hypvision.clip import load_segmenter
from hypvision.clip.models import create_clip, image_size, is_clip
from hypvision.clip.names import clip_options, parse_name
from hypvision.clip.radial.measure import embed_images
from hypvision.data.preprocessing import Preprocessing, preprocessing_of
from hypvision.io.errors import HypvisionError

TEXTS = ["a cat", "two red dogs on the grass in the evening sun of a long day"]


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)).save(
        path
    )
    return path


def same_as_open_clip(name, photo, monkeypatch, **options):
    """Whether texts and an image have the features that open_clip's own functions give."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model, _, transform = open_clip.create_model_and_transforms(name, **options)
    tokens = open_clip.get_tokenizer(name)(TEXTS)
    clip = create_clip(name, **options)
    assert torch.equal(clip.tokenizer(TEXTS), tokens)
    with torch.no_grad():
        expected = model.eval().encode_image(transform(Image.open(photo))[None], normalize=True)
        assert torch.allclose(embed_images(clip, [photo]), expected, atol=1e-5)
        assert torch.allclose(clip.model.encode_text(tokens), model.encode_text(tokens), atol=1e-6)
    return clip


@pytest.mark.parametrize(
    "options", [{}, dict(quick_gelu=True), dict(timm=True)], ids=["gelu", "quickgelu", "timm"]
)
def test_a_repository_in_the_cache_of_the_hub(tmp_path, monkeypatch, photo, options):
    model, tensors = clip_repository.config(**options), clip_repository.weights(**options)
    clip_repository.cached(monkeypatch, tmp_path / "hub", model=model, tensors=tensors)
    clip = same_as_open_clip("hf-hub:me/tiny", photo, monkeypatch)
    quick = (
        type(clip.model.transformer.resblocks[0].mlp.gelu).__name__
        if "timm" not in options
        else "QuickGELU"
    )
    assert (quick == "QuickGELU") == bool(options)
    size = 160 if "timm" in options else 32
    assert (
        preprocessing_of(clip.model) == Preprocessing(size, "bilinear", "squash")
        and image_size("hf-hub:me/tiny") == size
    )
    assert clip.mean == pytest.approx((102.0, 127.5, 153.0))
    assert all(torch.equal(value, tensors[name]) for name, value in clip.model.state_dict().items())


@pytest.mark.parametrize(
    "name", ["open_clip_model.safetensors", "mine.safetensors", "open_clip_pytorch_model.bin"]
)
def test_a_folder(tmp_path, monkeypatch, photo, name):
    tensors = clip_repository.weights()
    clip_repository.folder(
        tmp_path / "a clip", tensors=tensors, name=None if name.endswith(".bin") else name
    )
    if name.endswith(".bin"):
        torch.save(tensors, tmp_path / "a clip" / name)
    clip = same_as_open_clip(f"local-dir:{tmp_path / 'a clip'}", photo, monkeypatch)
    assert preprocessing_of(clip.model).resize_mode == "squash"
    monkeypatch.chdir(tmp_path)
    assert torch.equal(
        create_clip("local-dir:a clip").model.text_projection, tensors["text_projection"]
    )


def test_a_tokenizer_of_its_own(tmp_path, monkeypatch, photo):
    tokenizers, transformers = (
        pytest.importorskip("tokenizers"),
        pytest.importorskip("transformers"),
    )
    words = {
        word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "cat", "dogs", "[SEP]"])
    }
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]"
    )
    model = clip_repository.config(
        hf_tokenizer_name="me/words", tokenizer_kwargs=dict(clean="lower")
    )
    folder = clip_repository.folder(tmp_path / "clip", model)
    fast.save_pretrained(folder)
    clip = same_as_open_clip(f"local-dir:{folder}", photo, monkeypatch)
    assert clip.tokenizer(["A cat"])[0, :2].tolist() == [2, 3] and clip.tokenizer(
        ["A cat"]
    ).shape == (1, 16)
    # In a repository it is that of the config.
    asked = []
    monkeypatch.setattr(
        open_clip.tokenizer, "HFTokenizer", lambda *args, **options: asked.append((args, options))
    )
    clip_repository.cached(monkeypatch, tmp_path / "hub", model=model)
    create_clip("hf-hub:me/tiny")
    assert asked == [(("me/words",), dict(tokenizer_mode=None, context_length=16, clean="lower"))]


def test_other_weights_in_the_model_of_a_repository(tmp_path):
    folder = clip_repository.folder(tmp_path / "clip", name=None)
    tensors = clip_repository.weights()
    save_file(tensors, tmp_path / "tuned.safetensors")
    name = f"local-dir:{folder}"
    assert torch.equal(
        create_clip(name, tmp_path / "tuned.safetensors").model.ln_final.bias,
        tensors["ln_final.bias"],
    )
    assert create_clip(name, load_weights=False).mean == pytest.approx((102.0, 127.5, 153.0))
    assert is_clip(name) and is_clip("hf-hub:a/b")
    model = hypvision.load(tmp_path / "tuned.safetensors", model=name)
    assert torch.equal(model.ln_final.bias, tensors["ln_final.bias"]) and model.tokenizer(
        ["a"]
    ).shape == (1, 16)
    with pytest.raises(HypvisionError, match="has 0 files of weights"):
        create_clip(name)
    with pytest.raises(
        HypvisionError, match=f"'{name}' has no weights 'openai'. It has its own; or give the path"
    ):
        create_clip(name, "openai")


def test_names_on_the_command_line(tmp_path, monkeypatch, photo):
    for text, expected in {
        "ViT-B-32:openai": ("ViT-B-32", "openai"),
        "ViT-B-32:a:b.pt": ("ViT-B-32", "a:b.pt"),
        "hf-hub:me/tiny": ("hf-hub:me/tiny", None),
        "hf-hub:me/tiny:a.pt": ("hf-hub:me/tiny", "a.pt"),
        "local-dir:clips/a:a.pt": ("local-dir:clips/a", "a.pt"),
        "emoji-t8": ("emoji-t8", None),
    }.items():
        assert parse_name(text) == expected
    (tmp_path / "a:b").mkdir()
    assert parse_name(f"local-dir:{tmp_path}/a:b") == (f"local-dir:{tmp_path}/a:b", None)
    assert clip_options("hf-hub:me/tiny") == dict(name="hf-hub:me/tiny", pretrained=None)
    assert clip_options("hf-hub:me/tiny:none") == dict(name="hf-hub:me/tiny", load_weights=False)
    assert clip_options("ViT-B-16:none") == dict(name="ViT-B-16", pretrained=None)
    clip_repository.cached(monkeypatch, tmp_path / "hub")
    out = ["--out", str(tmp_path / "out")]
    assert (
        main(
            [
                "clip",
                "radius",
                "--clip",
                "hf-hub:me/tiny",
                "--classes",
                "cat, dog",
                "--images",
                str(photo),
                *out,
            ]
        )
        == 0
    )
    options = ("--clip", "hf-hub:me/tiny", "--classes", "cat, dog", "--device", "cpu", *out)
    assert main(["clip", "segment", str(photo), *options]) == 0


def test_patches_that_do_not_divide_the_usual_resolution(tmp_path):
    model = clip_repository.config()
    model["vision_cfg"].update(patch_size=14, image_size=28)
    torch.manual_seed(0)
    folder = clip_repository.folder(
        tmp_path / "clip", model, tensors=open_clip.CLIP(**model).state_dict()
    )
    assert load_segmenter(clip=f"local-dir:{folder}").resolution == 336  # as for OpenAI's ViT-L/14


def test_what_is_not_there_is_told(tmp_path, monkeypatch):
    def fails(match, name, **options):
        with pytest.raises(HypvisionError, match=match) as caught:
            create_clip(name, **options)
        assert "\n" not in str(caught.value)

    clip_repository.cached(monkeypatch, tmp_path / "hub", name=None)
    fails("open_clip_model.safetensors or .*.bin of 'me/tiny' is not on this machine, and "
          "HYPVISION_OFFLINE.*hf download me/tiny --local-dir DIR", "hf-hub:me/tiny")  # fmt: skip
    assert create_clip("hf-hub:me/tiny", load_weights=False).model is not None
    fails(
        "open_clip_config.json of 'me/none' is not on this machine, and HYPVISION_OFFLINE",
        "hf-hub:me/none",
    )
    fails("'hf-hub:none' is not hf-hub:USER/REPO", "hf-hub:none")
    fails(
        "'none' is not a folder. Give a folder with open_clip_config.json and weights",
        "local-dir:none",
    )
    fails(f"'{tmp_path}' has no open_clip_config.json", f"local-dir:{tmp_path}")
    fails(
        "If 'hf-hub:me/tiny' is a model repository of open_clip, give it as the name of the model",
        "ViT-B-32",
        pretrained="hf-hub:me/tiny",
    )
    path = clip_repository.folder(tmp_path / "odd")
    for content, says in (
        ("{", "describes no model of open_clip"),
        ("[1]", "describes no model of open_clip"),
        (json.dumps(dict(model_cfg=dict(embed_dim=3))), "describes no model of open_clip"),
        (
            json.dumps(dict(model_cfg=dict(vision_cfg=1, text_cfg=[]))),
            "was refused|describes no model",
        ),
        (
            json.dumps(dict(model_cfg=clip_repository.config(nonsense=3))),
            "cannot be made: .*nonsense",
        ),
        (
            json.dumps(
                dict(
                    model_cfg=clip_repository.config(tokenizer_kwargs=dict(trust_remote_code=True))
                )
            ),
            "was refused|describes no model",
        ),
    ):
        (path / "open_clip_config.json").write_text(content)
        fails(says, f"local-dir:{path}")


# Sizes: positions of a file are resized where another size is asked for, as those of a tag


@pytest.mark.parametrize("timm", [False, True])
def test_positions_of_a_file_are_resized_as_those_of_a_tag(tmp_path, monkeypatch, photo, timm):
    tensors = clip_repository.weights(timm=timm)
    clip_repository.register(monkeypatch, tag={}, timm=timm)
    clip_repository.cached(monkeypatch, tmp_path / "hub", tensors=tensors)
    save_file(tensors, tmp_path / "file.safetensors")
    options = dict(force_image_size=64, force_context_length=10)
    by_file = create_clip("tiny-clip", tmp_path / "file.safetensors", **options)
    by_tag = create_clip("tiny-clip", "odd", **options)
    expected = open_clip.create_model("tiny-clip", str(tmp_path / "file.safetensors"), **options)
    for found in (by_file, by_tag):
        values = found.model.state_dict()
        assert all(
            torch.equal(value, values[name]) for name, value in expected.state_dict().items()
        )
        assert (
            preprocessing_of(found.model).size == (64, 64) == tuple(found.model.visual.image_size)
        )
        assert found.tokenizer(["a cat"]).shape == (1, 10)
        assert found.model.encode_image(torch.zeros(1, 3, 64, 64)).isfinite().all()
    folder = clip_repository.folder(
        tmp_path / "clip", clip_repository.config(timm=timm), tensors=tensors
    )
    by_folder = create_clip(f"local-dir:{folder}", **options).model.state_dict()
    assert all(torch.equal(value, by_folder[name]) for name, value in expected.state_dict().items())


def test_positions_are_not_resized_unasked(tmp_path, monkeypatch):
    """A file of another architecture is told, not bent."""
    clip_repository.register(monkeypatch)
    tensors = clip_repository.weights()
    tensors["visual.positional_embedding"] = torch.randn(17, 32)
    save_file(tensors, tmp_path / "file.safetensors")
    with pytest.raises(
        HypvisionError,
        match="visual.positional_embedding .17x32 instead of 5x32.*Give force_image_size=64",
    ):
        create_clip("tiny-clip", tmp_path / "file.safetensors")
    assert (
        create_clip("tiny-clip", tmp_path / "file.safetensors", force_image_size=32).model
        is not None
    )
    del tensors["logit_scale"]
    save_file(tensors, tmp_path / "file.safetensors")
    with pytest.raises(HypvisionError, match="1 missing in the file: logit_scale"):
        create_clip("tiny-clip", tmp_path / "file.safetensors", force_image_size=32)
    for wrong in (torch.randn(17, 30), torch.randn(3), torch.randn(18, 32)):
        save_file(
            {**clip_repository.weights(), "visual.positional_embedding": wrong},
            tmp_path / "file.safetensors",
        )
        with pytest.raises(HypvisionError, match="does not fit the CLIP model"):
            create_clip("tiny-clip", tmp_path / "file.safetensors", force_image_size=64)
