"""One odd image among those that a command is given is named, with the exit status 2, and does not cost the others."""

import pytest
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")
from hypvision.cli import main

MODEL, CLIP = ["--model", "hcformer_nano.cifar10"], ["--clip", "shapes-s8.captions"]
WORDS = ["--classes", "disk, star"]


@pytest.fixture
def folder(tmp_path):
    """Two good images, a damaged one between them, and a list of these that names a missing one, too."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a", "c"):
        Image.effect_noise((64, 64), 50 + ord(name)).convert("RGB").save(images / f"{name}.png")
    (images / "b.png").write_bytes(b"no image")
    (tmp_path / "list.txt").write_text("".join(f"images/{name}.png\n" for name in ("none", "a", "b", "c")))
    return tmp_path


COMMANDS = {
    "predict": (["predict", "IMAGES", *MODEL, "--out", "out"], ["a_overlay.png", "c_overlay.png", "predictions.json"]),
    "predict with a CLIP": (["predict", "IMAGES", *CLIP, *WORDS, "--out", "out"], ["predictions.csv"]),
    "clip segment": (["clip", "segment", "IMAGES", *CLIP, *WORDS, "--out", "out"], ["a_labels.png", "c_labels.png"]),
    "explain": (["explain", "IMAGES", *MODEL, "--out", "out"], ["a_clusters.png", "c_clusters.png"]),
    "explain with a CLIP": (
        ["explain", "FOLDER", *CLIP, "--texts", "a disk", "--gallery", "FOLDER", "--out", "out"],
        ["a_walk.png", "c_walk.png", "radii.png"],
    ),
    "metric embed": (["metric", "embed", "IMAGES", *MODEL, "--save", "out/e.npz"], ["e.npz"]),
    "metric search": (["metric", "search", "FOLDER/a.png", "--gallery", "IMAGES", *MODEL, "--save", "out/s.png"],
                      ["s.png", "s.json"]),
    "metric search of several": (["metric", "search", "IMAGES", "--gallery", "FOLDER", *MODEL, "--save",
                                  "out/s.png"], ["s_a.png", "s_c.png"]),
    "clip radius": (["clip", "radius", "--images", "FOLDER", *CLIP, *WORDS, "--out", "out"], ["radius.json"]),
}  # fmt: skip


@pytest.mark.parametrize("given", ["folder", "list"])
@pytest.mark.parametrize("command", COMMANDS)
def test_it_does_not_cost_the_others(folder, command, given, monkeypatch, capsys):
    words, expected = COMMANDS[command]
    if given == "list" and "IMAGES" not in words:
        pytest.skip("it takes no lists")
    monkeypatch.chdir(folder)
    named = "images" if given == "folder" else "list.txt"
    assert main([word.replace("IMAGES", named).replace("FOLDER", "images") for word in words]) == 2
    told = capsys.readouterr()
    assert "images are left out" in told.err and "b.png" in told.err
    assert ("none.png" in told.err) == (given == "list")
    assert {*expected} <= {path.name for path in (folder / "out").iterdir()}


def test_a_damaged_video_does_not_cost_the_others(folder, monkeypatch, capsys):
    pytest.importorskip("cv2")
    monkeypatch.chdir(folder)
    (folder / "b.mp4").write_bytes(b"no video")
    assert main(["predict", "b.mp4", "images/a.png", "images/c.png", *MODEL, "--out", "out"]) == 2
    assert "1 of 3 images are left out. The video 'b.mp4' cannot be read" in capsys.readouterr().err
    assert {"a_overlay.png", "c_overlay.png"} <= {path.name for path in (folder / "out").iterdir()}
