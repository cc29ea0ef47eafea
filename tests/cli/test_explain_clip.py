"""``hypvision explain --clip``: the way of a photo to the root, and distances from the root."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")
from hypvision.cli import main
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.radial.measure import embed_images, rooted
from hypvision.inference.pictures import caption_radii, embed_pictures, find_pictures
from hypvision.viz import radii, traversal
from hypvision.viz.radii import draw_radii

TEXTS = ["a dog", "a red wall", "an animal", "two birds on a roof"]


@pytest.fixture
def meru(monkeypatch, tmp_path):
    """A small hyperbolic CLIP with cones that hold something, and a folder of captions with
    boxes."""
    config = ARCHITECTURES["emoji-s16"]
    vision = dict(image_size=32, layers=1, width=32, patch_size=16, head_width=16)
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    monkeypatch.setitem(
        ARCHITECTURES,
        "meru-tiny",
        config | dict(embed_dim=16, vision_cfg=vision, text_cfg=text, geometry="lorentz"),
    )
    torch.manual_seed(0)
    clip = create_clip("meru-tiny")
    model = clip.model
    with torch.no_grad():
        model.textual_alpha.fill_(-2.0)
        model.visual_alpha.fill_(0.0)
        # The projection makes the feature of the red image of this bias: texts lie on its way to
        # the root.
        model.ln_final.bias.fill_(1.0)
        red = clip.normalised(
            torch.tensor([255.0, 0.0, 0.0])[None, :, None, None].expand(1, 3, 32, 32)
        )
        model.text_projection.mul_(0.1).add_(model.encode_image(red) / len(model.ln_final.bias))
    torch.save(model.state_dict(), tmp_path / "meru.pth")
    (tmp_path / "data/images").mkdir(parents=True)
    lines = ["image,caption,left,top,right,bottom,words"]
    for n, name in enumerate(("red", "blue", "green")):
        Image.new("RGB", (40, 40), name).save(tmp_path / f"data/images/{n}.png")
        lines.append(f"{n}.png,a {name} wall" + (f",0,0,20,20,{name}" if n else ",,,,,"))
    (tmp_path / "data/captions.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn: the arguments of each picture by its name."""
    found, draw = {}, traversal.draw_traversal
    monkeypatch.setattr(
        traversal,
        "draw_traversal",
        lambda *given: found.update({given[3].name: given}) or draw(*given),
    )
    return found


def explain(meru, *arguments):
    """``explain`` of the first image; the files that it wrote."""
    clip, out = f"meru-tiny:{meru / 'meru.pth'}", meru / "out"
    assert (
        main(
            [*f"explain {meru / 'data/images/0.png'} --clip {clip} --out {out}".split(), *arguments]
        )
        == 0
    )
    return {path.name for path in out.iterdir()}


@pytest.mark.drawn
def test_the_way_to_the_root(meru, capsys, drawn):
    arguments = f"--texts {meru / 'texts.txt'} --captions {meru / 'data'} --steps 20".split()
    assert explain(meru, *arguments) == {"0_walk.png", "radii.png"}
    told = capsys.readouterr().out
    clip = create_clip("meru-tiny", meru / "meru.pth")
    [(_, radii, found, _, end)] = drawn.values()
    assert end is None and len(radii) == 20 and radii[-1] == pytest.approx(0, abs=1e-4)
    assert np.allclose(np.diff(radii), radii[0] / -19, atol=1e-4)  # even steps to the origin
    assert len(found) > 1
    assert found[-1].name == "[ROOT]"
    assert found[-1].radius == pytest.approx(0, abs=1e-4)
    for step, text, radius, image in found[:-1]:
        assert 0 <= step < 20 and image is None
        assert radius == pytest.approx(float(clip.space.radius(clip.embed_texts([text]))), rel=1e-4)
        assert f"{text} (distance from the root {radius:.3f})" in told
    assert (
        len(np.unique(np.asarray(Image.open(meru / "out/radii.png")).reshape(-1, 3), axis=0)) > 10
    )


def test_the_way_to_another_image_passes_images_and_boxes(meru, capsys, drawn):
    end = str(meru / "data/images/2.png")
    explain(meru, "--gallery", str(meru / "data"), "--to", end, "--steps", "30")
    [(_, radii, found, _, last)] = drawn.values()
    clip = create_clip("meru-tiny", meru / "meru.pth")
    points = embed_images(clip, [meru / f"data/images/{n}.png" for n in range(3)])
    first, length = clip.space.radius(points[0]), len(radii)
    assert length == 30 and radii[0] == pytest.approx(float(first), rel=1e-4)
    assert radii[-1] == pytest.approx(float(clip.space.radius(points[2])), rel=1e-4)
    assert np.array_equal(np.asarray(last), np.asarray(Image.open(end)))
    # Its ends are no news, but their boxes are: each step has the nearest of image 1, its box, and
    # the box of image 2.
    others = {
        str(picture): embed_pictures(clip, [picture])[1][0]
        for picture in find_pictures([meru / "data"])
        if picture.box or picture.path.stem == "1"
    }
    assert len(others) == 3 and sum(name.endswith(("blue", "green")) for name in others) == 2
    names, rows = [*others], torch.stack([*others.values()])
    way = clip.space.way(points[0], 30, points[2])
    root = clip.space.way(points[0], 2)[-1:]
    nearest = clip.space.similarity(way, torch.cat([rows, root])).argmax(1).tolist()
    expected = [names[n] for n in dict.fromkeys(nearest) if n < len(names)]
    assert [one.name for one in found] == expected != []
    assert all(one.image is not None for one in found)
    told = capsys.readouterr().out
    assert all(f"{one.name} (distance from the root {one.radius:.3f})" in told for one in found)


def test_pictures_of_files_and_of_folders_with_boxes(meru):
    found = find_pictures([meru / "data", meru / "data/images/0.png"])
    names = [
        f"{meru}/data/images/{name}"
        for name in ("0.png", "1.png", "1.png, blue", "2.png", "2.png, green", "0.png")
    ]
    assert [str(picture) for picture in found] == names
    assert [picture.open().size for picture in found[1:3]] == [(40, 40), (20, 20)]


def test_distances_of_captions_and_boxes(meru):
    clip = create_clip("meru-tiny", meru / "meru.pth")
    found = caption_radii(clip, meru / "data", rooted(clip), batch=2)
    assert {name: len(values) for name, values in found.items()} == {
        "images": 3, "box images": 2, "texts": 3, "box texts": 2,
    }  # fmt: skip
    expected = clip.space.radius(clip.embed_texts(["blue", "green"]))
    assert torch.allclose(found["box texts"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--clip", "emoji-s16:none"],
            "Give --texts, such as a .txt file of captions, or --gallery",
        ),
        ([], "one of the arguments --model --clip is required"),
    ],
)
def test_mistakes_are_explained(meru, capsys, arguments, message):
    assert main(["explain", str(meru / "data/images/0.png"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_labels_do_not_cover_each_other():
    places = traversal.apart(np.array([1.0, 0.99, 0.98, 0.02, 0.0]), gap=0.1, top=1.0)
    assert np.all(np.diff(places) <= -0.1 + 1e-9) and places[-1] >= 0 and places[0] <= 1.2


def test_few_values_are_lines(tmp_path):
    draw_radii(
        {"images": torch.tensor([0.5, 0.7]), "texts": torch.rand(100)},
        {},
        tmp_path / "radii.png",
        "distance",
    )
    assert Image.open(tmp_path / "radii.png").size == (720, 480)


@pytest.mark.parametrize("count, said", [(3, ["images", "texts"]), (100, ["density"])])
def test_only_many_radii_have_a_density(tmp_path, monkeypatch, count, said):
    """One image and three texts have no density: a column each, with the texts' names."""
    figures = []
    monkeypatch.setattr(radii, "save_figure", lambda figure, *_, **__: figures.append(figure))
    values = {"images": torch.tensor([1.1]), "texts": torch.rand(count)}
    draw_radii(values, {}, tmp_path / "radii.png", "distance", {"texts": ["mammal", "b", "c"]})
    [axes] = figures[0].axes
    columns = [label.get_text() for label in axes.get_xticklabels()]
    assert (columns if count == 3 else [axes.get_ylabel()]) == said
    assert {text.get_text() for text in axes.texts} == (
        {"mammal", "b", "c"} if count == 3 else set()
    )


def test_the_clip_that_ships_walks_as_its_page_shows(tmp_path, capsys):
    """docs/hyperbolic-clip.md: a monkey's face, past 'mammal', to the root; points have a time and
    128 coordinates."""
    root = Path(__file__).parents[2]
    photo, words = (
        root / "tools/demo_data/emoji/images/noto/1f435.png",
        root / "docs/images/hyperbolic-clip/words.txt",
    )
    arguments = f"--clip hycoclip-emoji-s16 --texts {words} --out {tmp_path / 'out'}".split()
    assert main(["explain", str(photo), *arguments]) == 0
    said = capsys.readouterr().out
    found = [
        line.split("way: ")[1].split(" (")[0]
        for line in said.splitlines()
        if "% of the way: " in line
    ]
    assert found[0] == "monkey face" and "mammal" in found and found[-1] == "[ROOT]"
    points = create_clip("hycoclip-emoji-s16", "zoo:hycoclip-emoji-s16.scenes").embed_texts(
        ["mammal"]
    )
    assert points.shape == (1, 129)
