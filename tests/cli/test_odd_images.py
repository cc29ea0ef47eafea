"""One odd image among those that a command is given is named, with the exit status 2, and does not
cost the others."""

import os

import pytest
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")
from hypvision.cli import main
from hypvision.io import images

MODEL, CLIP = ["--model", "hcformer_nano.cifar10"], ["--clip", "emoji-t8.scenes"]
WORDS = ["--classes", "fruit, bird"]


@pytest.fixture
def folder(tmp_path):
    """Two good images, a damaged one between them, and a list of these that names a missing one,
    too."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a", "c"):
        Image.effect_noise((64, 64), 50 + ord(name)).convert("RGB").save(images / f"{name}.png")
    (images / "b.png").write_bytes(b"no image")
    (tmp_path / "list.txt").write_text(
        "".join(f"images/{name}.png\n" for name in ("none", "a", "b", "c"))
    )
    return tmp_path


COMMANDS = {
    "predict": (["predict", "IMAGES", *MODEL, "--out", "out"], ["a_overlay.png", "c_overlay.png",
    "predictions.json"]),
    "predict with a CLIP": (["predict", "IMAGES", *CLIP, *WORDS, "--out", "out"],
    ["predictions.csv"]),
    "clip segment": (["clip", "segment", "IMAGES", *CLIP, *WORDS, "--out", "out"], ["a_labels.png",
    "c_labels.png"]),
    "explain": (["explain", "IMAGES", *MODEL, "--out", "out"], ["a_clusters.png",
    "c_clusters.png"]),
    "explain with a CLIP": (
        ["explain", "FOLDER", *CLIP, "--texts", "a disk", "--gallery", "FOLDER", "--out", "out"],
        ["a_walk.png", "c_walk.png", "radii.png"],
    ),
    "metric embed": (["metric", "embed", "IMAGES", *MODEL, "--save", "out/e.npz"], ["e.npz"]),
    "metric search": (["metric", "search", "FOLDER/a.png", "--gallery", "IMAGES", *MODEL, "--save",
    "out/s.png"],
                      ["s.png", "s.json"]),
    "metric search of several": (["metric", "search", "IMAGES", "--gallery", "FOLDER", *MODEL,
    "--save",
                                  "out/s.png"], ["s_a.png", "s_c.png"]),
    "clip radius": (["clip", "radius", "--images", "FOLDER", *CLIP, *WORDS, "--out", "out"],
    ["radius.json"]),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_it_does_not_cost_the_others(folder, command, monkeypatch, capsys):
    words, expected = COMMANDS[command]
    monkeypatch.chdir(folder)
    assert (
        main([word.replace("IMAGES", "list.txt").replace("FOLDER", "images") for word in words])
        == 2
    )
    told = capsys.readouterr()
    assert "images are left out" in told.err and "b.png" in told.err
    assert ("none.png" in told.err) == ("IMAGES" in words)  # the others take no lists
    assert {*expected} <= {path.name for path in (folder / "out").iterdir()}


@pytest.fixture
def chains(folder):
    """A chain of texts for each image, and a tree of two classes, one of which has the images."""
    rows = "".join(f"{name},thing => {name}\n" for name in "abc")
    (folder / "chains.csv").write_text("id,captions\n" + rows)
    (folder / "tree.json").write_text('{"disk": ["shape"], "star": ["shape"]}')
    (folder / "classes").mkdir()
    (folder / "classes/disk").symlink_to(folder / "images")
    return ["clip", "chains", "chains.csv", *CLIP, "--images", "images", "--out", "out"]


def test_it_costs_its_own_chain_walk_and_row_of_a_tree(folder, chains, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    more = [
        "--tree",
        "tree.json",
        "--tree-images",
        "classes",
        "--show",
        "images/b.png",
        "images/c.png",
    ]
    assert main([*chains, *more]) == 2
    told = capsys.readouterr().err
    assert "2 of 8 images are left out" in told
    assert "images/b.png" in told
    assert "classes/disk/b.png" in told
    assert {"chains.json", "radii.png", "00_c.png"} == {
        path.name for path in (folder / "out").iterdir()
    }
    (folder / "images/b.png").unlink()
    (folder / "chains.csv").write_text("id,captions\na,thing => a\nc,thing => c\n")
    left = (folder / "out/chains.json").read_text()
    assert main([*chains, *more[:4]]) == 0 and (folder / "out/chains.json").read_text() == left


def test_it_does_not_cost_the_sheet_of_what_a_model_is_fed(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for part in ("train", "test"):
        for name in ("a", "b", "c"):
            place = folder / "photos" / part / name
            place.mkdir(parents=True)
            (place / f"{name}.png").write_bytes((folder / f"images/{name}.png").read_bytes())
    line = [
        "browse",
        "demo/photos",
        "--cfg-options",
        "data_root=photos",
        "--part",
        "train",
        "--out",
        "out",
    ]
    assert main(line) == 2
    told = capsys.readouterr()
    assert "1 of 3 images are left out" in told.err
    assert "b.png" in told.err
    assert "train: 2 of 3 samples" in told.out
    assert (folder / "out/train.png").is_file()


def test_a_damaged_video_does_not_cost_the_others(folder, monkeypatch, capsys):
    pytest.importorskip("cv2")
    monkeypatch.chdir(folder)
    (folder / "b.mp4").write_bytes(b"no video")
    assert main(["predict", "b.mp4", "images/a.png", "images/c.png", *MODEL, "--out", "out"]) == 2
    assert "1 of 3 images are left out. The video 'b.mp4' cannot be read" in capsys.readouterr().err
    assert {"a_overlay.png", "c_overlay.png"} <= {path.name for path in (folder / "out").iterdir()}


def test_what_a_folder_has_besides_is_told(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setitem(images._MISSING, ".heic", "install pillow-heif to read HEIC")
    monkeypatch.setattr(images, "SUFFIXES", images.SUFFIXES - {".heic"})
    (folder / "images/b.png").unlink()
    (folder / "images/sub/.hidden").mkdir(parents=True)
    for name in ("d.heic", "sub/e.png", "sub/notes.txt", "sub/.hidden/f.png", ".g.png"):
        (folder / "images" / name).write_bytes((folder / "images/a.png").read_bytes())
    os.mkfifo("images/h.png")
    here = (
        "'images': used 3 of 6 files. Left out: 1 files (suffix .heic: install pillow-heif to read "
        "HEIC: d.heic); 1 files (a pipe, a device or a link to nothing: h.png); 1 files (suffix "
        ".txt: sub/notes.txt)."
    )
    for words, _ in COMMANDS.values():
        given = [word.replace("IMAGES", "images").replace("FOLDER", "images") for word in words]
        assert main(given) == 0
        told = capsys.readouterr().err
        assert told.count(f"warning: {here}") == 1, given
    assert main(["predict", "images/*.png", *MODEL, "--out", "out"]) == 2
    assert (
        "1 of 3 images are left out. The image 'images/h.png' is a pipe" in capsys.readouterr().err
    )
    os.mkdir("none")
    os.rename("images/d.heic", "none/d.heic")
    assert main(["predict", "none", *MODEL]) == 2
    assert "install pillow-heif" in capsys.readouterr().err
