"""``hypvision explain --clip``: the way of a photo to the root, and distances from the root."""

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")
from hypvision.cli import main
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.radial.measure import rooted
from hypvision.inference.caption_radii import caption_radii
from hypvision.viz import traversal
from hypvision.viz.radii import draw_radii

TEXTS = ["a dog", "a red wall", "an animal", "two birds on a roof"]


@pytest.fixture
def meru(monkeypatch, tmp_path):
    """A small hyperbolic CLIP with cones that hold something, and a folder of captions with boxes."""
    config = ARCHITECTURES["emoji-s16"]
    vision = dict(image_size=32, layers=1, width=32, patch_size=16, head_width=16)
    text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
    monkeypatch.setitem(
        ARCHITECTURES, "meru-tiny", config | dict(embed_dim=16, vision_cfg=vision, text_cfg=text, geometry="lorentz")
    )
    torch.manual_seed(0)
    model = create_clip("meru-tiny").model
    with torch.no_grad():
        model.textual_alpha.fill_(-2.5)
        model.visual_alpha.fill_(0.0)
    torch.save(model.state_dict(), tmp_path / "meru.pth")
    (tmp_path / "data/images").mkdir(parents=True)
    lines = ["image,caption,left,top,right,bottom,words"]
    for n, name in enumerate(("red", "blue", "green")):
        Image.new("RGB", (40, 40), name).save(tmp_path / f"data/images/{n}.png")
        lines.append(f"{n}.png,a {name} wall" + (f",0,0,20,20,{name}" if n else ",,,,,"))
    (tmp_path / "data/captions.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def test_the_way_to_the_root(meru, capsys, monkeypatch):
    drawn, draw = {}, traversal.draw_traversal
    monkeypatch.setattr(
        traversal, "draw_traversal", lambda *given: drawn.update({given[3].name: given}) or draw(*given)
    )
    image, out = str(meru / "data/images/0.png"), meru / "out"
    arguments = ["--clip", f"meru-tiny:{meru / 'meru.pth'}", "--texts", str(meru / "texts.txt"), "--out", str(out)]
    assert main(["explain", image, *arguments, "--captions", str(meru / "data"), "--steps", "20"]) == 0
    told = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"0_walk.png", "radii.png"}
    clip = create_clip("meru-tiny", meru / "meru.pth")
    for _, radii, found, _ in drawn.values():
        assert len(radii) == 20 and radii[-1] == pytest.approx(0, abs=1e-4)
        assert np.allclose(np.diff(radii), radii[0] / -19, atol=1e-4)  # even steps to the origin
        assert found[-1][1:] == ("[ROOT]", pytest.approx(0, abs=1e-4))
        for step, text, radius in found[:-1]:
            assert 0 <= step < 20 and radius == pytest.approx(
                float(clip.space.radius(clip.embed_texts([text]))), rel=1e-4
            )
            assert f"{text} ({radius:.3f} from the root)" in told
    assert len(np.unique(np.asarray(Image.open(out / "radii.png")).reshape(-1, 3), axis=0)) > 10


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
        (["--clip", "emoji-s16:none"], "give them with --texts"),
        (["--model", "hcformer_nano", "--texts", "a dog"], "name it with --clip"),
        ([], "one of the arguments --model --clip is required"),
    ],
)
def test_mistakes_are_explained(meru, capsys, arguments, message):
    assert main(["explain", str(meru / "data/images/0.png"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_labels_do_not_cover_each_other():
    places = traversal._apart(np.array([1.0, 0.99, 0.98, 0.02, 0.0]), gap=0.1, top=1.0)
    assert np.all(np.diff(places) <= -0.1 + 1e-9) and places[-1] >= 0 and places[0] <= 1.2


def test_few_values_are_lines(tmp_path):
    draw_radii({"images": torch.tensor([0.5, 0.7]), "texts": torch.rand(100)}, {}, tmp_path / "radii.png", "distance")
    assert Image.open(tmp_path / "radii.png").size == (720, 480)
