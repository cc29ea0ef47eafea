"""Every command that ranks by a CLIP ranks a hyperbolic one by its distances, computed here from
the points."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")
from hypvision.cli import main
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.radial.metrics import kendall_tau
from hypvision.data.chains import Chain, write_chains
from hypvision.data.classes import TEMPLATES
from hypvision.data.preprocessing import preprocessing_of
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError

COLOURS = ("red", "blue", "green", "white", "black")
CLASSES = ["dog", "cat", "red wall"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Weights of a small model whose points are spread, photos, and their points."""
    root = tmp_path_factory.mktemp("clip")
    vision = dict(image_size=32, layers=1, width=32, patch_size=16, head_width=16)
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    config = dict(embed_dim=16, vision_cfg=vision, text_cfg=text, geometry="lorentz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "meru-tiny", config)
        torch.manual_seed(0)
        model = create_clip("meru-tiny").model
        with torch.no_grad():
            model.curv.fill_(0.4)
            model.visual_alpha.fill_(-1.0)
            model.textual_alpha.fill_(-0.5)
        torch.save(model.state_dict(), root / "meru.pth")
        (root / "photos").mkdir()
        for colour in COLOURS:
            Image.new("RGB", (40, 40), colour).save(root / f"photos/{colour}.png")
        yield root


@pytest.fixture(scope="module")
def clip(place):
    return create_clip("meru-tiny", place / "meru.pth")


def run(place, *words):
    assert main([*map(str, words), "--clip", f"meru-tiny:{place / 'meru.pth'}"]) == 0


@torch.no_grad()
def points(clip, place):
    photos = [
        preprocessing_of(clip.model)(Image.open(place / f"photos/{colour}.png"))
        for colour in sorted(COLOURS)
    ]
    return clip.embed_images(torch.stack(photos))


@torch.no_grad()
def distances(clip, x, y):
    return lorentz.dist(x[:, None], y[None], float(clip.space.c))


def test_predict(place, clip, tmp_path):
    run(
        place,
        *f"predict {place / 'photos'} --classes".split(),
        ", ".join(CLASSES),
        *f"--out {tmp_path} --write csv".split(),
    )
    with (tmp_path / "predictions.csv").open() as file:
        found = {
            (row["file"].rpartition("/")[2], row["name"]): float(row["score"])
            for row in csv.DictReader(file)
        }
    model = OpenVocabularyCLIP()
    model.build_clip(clip, tune="frozen", classes=CLASSES, dense=False)
    with torch.no_grad():
        means = [
            clip.model.encode_text(clip.tokenizer([t.format(c) for t in model.templates])).mean(0)
            for c in CLASSES
        ]
        texts = clip.space.embed(torch.stack(means), "text")
        truth = (
            -clip.model.logit_scale.exp() * distances(clip, points(clip, place), texts)
        ).softmax(-1)
    for row, colour in enumerate(sorted(COLOURS)):
        for column, name in enumerate(CLASSES):
            assert found[f"{colour}.png", name] == pytest.approx(
                float(truth[row, column]), abs=2e-3
            )


def test_embed(place, clip, tmp_path):
    run(place, "metric", "embed", place / "photos", "--save", tmp_path / "images.npz")
    run(place, "metric", "embed", "--texts", *CLASSES, "--save", tmp_path / "texts.npz")
    with np.load(tmp_path / "images.npz") as images, np.load(tmp_path / "texts.npz") as texts:
        assert np.allclose(images["embeddings"], points(clip, place), atol=1e-5)
        assert np.allclose(texts["embeddings"], clip.embed_texts(CLASSES).detach(), atol=1e-5)
        assert str(images["space"]) == "lorentz"
        assert float(images["c"]) == pytest.approx(float(clip.space.c))
        assert [*texts["texts"]] == CLASSES
    lines = [CLASSES[0], CLASSES[1], "", CLASSES[0]]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    words = f"metric embed --texts {tmp_path / 'lines.txt'} --save {tmp_path / 'lines.npz'}"
    run(place, *words.split())
    with np.load(tmp_path / "lines.npz") as found:  # row i is line i
        assert [*found["texts"]] == lines
        assert np.allclose(found["embeddings"], clip.embed_texts(lines).detach(), atol=1e-5)


def test_search_by_text(place, clip, tmp_path):
    run(
        place,
        "metric",
        "search",
        "--texts",
        "a red wall",
        *f"--gallery {place / 'photos'} --save {tmp_path / 's.png'}".split(),
    )
    [query] = json.loads((tmp_path / "s.json").read_text())["queries"]
    found = [(row["file"].rpartition("/")[2], row["distance"]) for row in query["neighbours"]]
    truth = distances(clip, clip.embed_texts(["a red wall"]), points(clip, place))[0].tolist()
    expected = sorted(
        zip((f"{colour}.png" for colour in sorted(COLOURS)), truth), key=lambda pair: pair[1]
    )
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [far for _, far in found] == pytest.approx([far for _, far in expected], abs=1e-3)


def test_chains(place, clip, tmp_path):
    chains = [["thing", "animal", "dog"], ["thing", "wall", "red wall"]]
    write_chains(tmp_path / "chains.csv", [Chain(tuple(texts), ()) for texts in chains])
    run(place, "clip", "chains", tmp_path / "chains.csv", "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out/chains.json").read_text())["models"]
    texts = clip.embed_texts([text for chain in chains for text in chain])
    radii = lorentz.dist0(texts, float(clip.space.c)).reshape(2, 3)
    assert next(iter(found.values()))["d_corr"] == pytest.approx(
        float(kendall_tau(radii).mean()), abs=1e-6
    )


def test_radius(place, clip, tmp_path, capsys):
    run(place, "clip", "radius", "--classes", "dog, cat", "--out", tmp_path)
    [found] = json.loads((tmp_path / "radius.json").read_text())["statistics"].values()
    sentences = [
        template.format(name) for name in ("dog", "cat") for template in TEMPLATES["catseg"]
    ]
    radii = lorentz.dist0(clip.embed_texts(sentences), float(clip.space.c))
    assert found["mean"] == pytest.approx(float(radii.mean()), rel=1e-4)
    half = (
        f"clip radius --clip meru-tiny:{place / 'meru.pth'} --classes dog --convention half"
    ).split()
    assert main([*half, "--out", str(tmp_path)]) == 2
    assert "has a metric of its own" in capsys.readouterr().err


def test_segmentation_is_refused(clip, monkeypatch):
    with pytest.raises(HypvisionError, match="do not segment.*a patch has no distance to a text"):
        OpenVocabularyCLIP().build_clip(clip, tune="frozen", classes=CLASSES)
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    monkeypatch.setitem(
        ARCHITECTURES, "clip-vit-s-16", ARCHITECTURES["clip-vit-s-16"] | dict(text_cfg=text)
    )
    with pytest.raises(
        HypvisionError, match="baselines 'clip-vit-.*do not segment.*Take a CLIP such as ViT-B-16"
    ):
        OpenVocabularyCLIP().build_clip(dict(name="clip-vit-s-16"), tune="frozen", classes=CLASSES)
