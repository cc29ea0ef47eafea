"""Both towers of a hyperbolic CLIP in other runtimes, in 8 bits and compiled."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image
from timm.data import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

pytest.importorskip("open_clip")
from helpers.engine import ROOT

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.storage import pack, write_tensors
from hypvision.cli import main
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.names import clip_options
from hypvision.clip.spaces import Hyperboloid
from hypvision.zoo.export_clip import clip_tower

TEXTS = ["a photo of a dog", "a cat", "two birds on the roof of an old house"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clip")


TOWERS = {
    "timm": dict(
        image_size=32, timm_model_name="vit_tiny_patch16_224", timm_pool="token", timm_proj="linear"
    ),
    "small": dict(image_size=32, layers=2, width=32, patch_size=16, head_width=16),
}


@pytest.fixture
def clip(request, monkeypatch, folder):
    """A model whose features are long enough for the curvature to matter, and its file."""
    geometry, tower = request.param
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
    config = dict(
        embed_dim=24, vision_cfg=TOWERS[tower], text_cfg=text, vision_heads=3, geometry=geometry
    )
    monkeypatch.setitem(ARCHITECTURES, "tiny", config)
    torch.manual_seed(0)
    path = folder / f"{geometry}-{tower}.pth"
    model = create_clip("tiny").model
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        if geometry == "product":
            for number, curv in enumerate(model.curvs):
                curv.fill_(0.4 * number)
        if geometry == "lorentz":
            model.curv.fill_(0.4)
            model.textual_alpha.fill_(-0.2)
            model.visual_alpha.fill_(-0.5)
    torch.save(model.state_dict(), path)
    return create_clip("tiny", path)._replace(mean=(0.0,) * 3, std=(1.0,) * 3), path


MERU = pytest.mark.parametrize(
    "clip",
    [("lorentz", "small"), pytest.param(("lorentz", "timm"), marks=pytest.mark.slow)],
    indirect=True,
)
BOTH = pytest.mark.parametrize(
    "clip",
    [("lorentz", "small"), ("sphere", "small"), ("lorentz", "timm"), ("product", "small")],
    indirect=True,
)


def points(clip, images):
    with torch.no_grad():
        return clip.embed_images(images), clip.embed_texts(TEXTS)


def run(path, x):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(x)
    session = pytest.importorskip("onnxruntime").InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    assert given.name == ("images" if x.is_floating_point() else "tokens")
    assert given.shape[0] == "batch"
    return torch.from_numpy(session.run(None, {given.name: x.numpy()})[0])


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("kind", ["torchexport", "onnx"])
def test_files_give_the_points(clip, kind, folder, capsys):
    clip, weights = clip
    images = torch.randn(5, 3, 32, 32)
    suffix = {"onnx": ".onnx", "torchexport": ".pt2"}[kind]
    for part, x, expected in zip(
        ("image", "text"), (images, clip.tokenizer(TEXTS)), points(clip, images)
    ):
        out = folder / f"{weights.stem}-{part}{suffix}"
        arguments = f"--clip tiny:{weights} --part {part} --format {kind} --save {out}".split()
        assert main(["export", *arguments]) == 0
        assert "Equal to eager PyTorch" in capsys.readouterr().out
        found = run(out, x)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        if kind == "torchexport":
            extra = {"hypvision.json": ""}
            torch.export.load(out, extra_files=extra)
            about = json.loads(extra["hypvision.json"])
            geometry = weights.stem.partition("-")[0]
            c = dict(lorentz=1.4918, product=[1.0, 1.4918, 2.2255]).get(geometry)
            assert about["geometry"] == geometry
            assert about.get("c") == (c and pytest.approx(c, rel=1e-4))
            assert ("mean" in about) == (part == "image")


@pytest.mark.slow
@MERU
def test_files_of_16_bits_lift_in_32(clip, folder):
    clip, weights = clip
    images = torch.randn(5, 3, 32, 32)
    out = folder / "half.pt2"
    assert main(["export", "--clip", f"tiny:{weights}", "--part", "image", "--format",
    "torchexport", "--half",
                 "--save", str(out)]) == 0  # fmt: skip
    (found,), expected = run(out, images), points(clip, images)[0]
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max() / expected.abs().max()) < 3e-2
    if isinstance(clip.space, Hyperboloid):
        on = found[:, 1:].square().sum(1) - found[:, 0].square()
        assert torch.allclose(on, -1 / clip.space.c.expand(5), atol=1e-3)


def prepared(path, about):
    """An image as a file's description says it, with Pillow and NumPy alone."""
    side = about["input_size"][1]
    image = Image.open(path).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    scale = side / about["crop_pct"] / min(image.size)
    size = [round(scale * length) for length in image.size]
    image = white.convert("RGB").resize(size, Image.Resampling[about["interpolation"].upper()])
    left, top = ((length - side) // 2 for length in size)
    low, high = about["pixel_range"]
    colours = (
        low
        + (high - low)
        * np.asarray(image.crop((left, top, left + side, top + side)), np.float32)
        / 255
    )
    return ((colours - np.float32(about["mean"])) / np.float32(about["std"])).transpose(2, 0, 1)


EMOJI = ROOT / "tools/demo_data/emoji"
COMMANDS = {
    "tower": ["--clip", "emoji-s16.captions", "--part", "image"],
    "hyperbolic tower": ["--clip", "hycoclip-emoji-s16.scenes", "--part", "image"],
    "record": ["emoji-s16.captions", "--part", "features", "--fixed-size"],
    "hyperbolic record": ["hycoclip-emoji-s16.scenes", "--part", "features", "--fixed-size"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_pictures_are_classified_by_what_a_file_says(command, tmp_path):
    """64 emoji among their 64 names; with mean and deviation of another range one of them is
    right."""
    onnxruntime = pytest.importorskip("onnxruntime")
    assert (
        main(["export", *COMMANDS[command], "--format", "onnx", "--save", str(tmp_path / "a.onnx")])
        == 0
    )
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    about = {
        key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()
    }
    rows = [row for row in json.loads((EMOJI / "emoji.json").read_text()) if picture(row).is_file()]
    found = session.run(
        None, {"images": np.stack([prepared(picture(row), about) for row in rows])}
    )[0]
    clip = create_clip(**clip_options(next(word for word in COMMANDS[command] if "emoji" in word)))
    with torch.no_grad():
        texts = clip.embed_texts([row["name"] for row in rows]).numpy()
    assert about["geometry"] == ("lorentz" if "hyperbolic" in command else "sphere")
    signs = np.ones(found.shape[1])
    signs[0] = -1 if about["geometry"] == "lorentz" else 1
    right = (found * signs @ texts.T).argmax(1) == np.arange(len(rows))
    assert len(rows) == 64 and right.mean() > (0.4 if "hyperbolic" in command else 0.8)


def picture(row):
    return EMOJI / f"images/noto/{row['id']}.png"


@each("name", [record.name for record in builtin_index().select(task="zero-shot")])
def test_towers_and_records_have_one_unit(name):
    """That of timm and open_clip, whose default the record has to six digits."""
    record = builtin_index().records[name]
    _, size, about = clip_tower(create_clip(**clip_options(name)), "image")
    assert size == record.input.size and about["crop_pct"] == record.input.crop_pct
    assert about["interpolation"] == record.input.interpolation
    for key, values in dict(mean=OPENAI_CLIP_MEAN, std=OPENAI_CLIP_STD).items():
        assert about[key] == pytest.approx(values, abs=1e-7)
        assert getattr(record.input, key) == pytest.approx(values, abs=1e-6)


def test_what_does_not_go_together(capsys):
    for arguments, message in (
        (["--clip", "emoji-t8"], "choose --part image, text or both"),
        (["emoji-t8.scenes", "--part", "text"], "is for a CLIP: name it with --clip"),
        ([], "one of the arguments NAME --clip is required"),
    ):
        assert main(["export", *arguments, "--format", "onnx"]) == 2
        assert message in capsys.readouterr().err


def ranks(similarity):
    """Spearman's correlation with these ranks is that of the similarities."""
    return np.argsort(np.argsort(similarity.flatten().numpy()))


@MERU
def test_eight_bits(clip, folder):
    """Weights stored in 8 bits, and linear layers that compute with 8."""
    clip, _ = clip
    images = torch.randn(12, 3, 32, 32)
    truth = clip.similarity(*points(clip, images))
    weights = folder / "eight.safetensors"
    write_tensors(pack(clip.model.state_dict(), "int8"), weights)
    stored = create_clip("tiny", weights)._replace(mean=clip.mean, std=clip.std)
    scalars = ("logit_scale", "curv", "visual_alpha", "textual_alpha")
    assert all(
        torch.equal(getattr(stored.model, name), getattr(clip.model, name)) for name in scalars
    )
    quantised = clip._replace(model=_quantised(clip.model))
    assert sum(type(m).__module__.startswith("torch.ao") for m in quantised.model.modules()) >= 4
    for other in (stored, quantised):
        found = other.similarity(*points(other, images))
        assert not torch.equal(found, truth)
        assert np.corrcoef(ranks(found), ranks(truth))[0, 1] > 0.99


def _quantised(model):
    copy = deepcopy(model)
    return torch.ao.quantization.quantize_dynamic(copy, {torch.nn.Linear}, dtype=torch.qint8)
