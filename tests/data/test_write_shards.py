"""Shards that the command writes hold what the folder holds, and are read by the data sets of
shards."""

import tarfile

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("webdataset")
from hypvision.cli import main
from hypvision.data import shards
from hypvision.data.shard_index import INDEX
from hypvision.data.write_shards import write_shards
from hypvision.io.errors import HypvisionError


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(path)


@pytest.fixture
def captions(tmp_path):
    """Seven captions of seven images, and two boxes of each but the last."""
    lines = ["image,caption,left,top,right,bottom,words"]
    for n in range(7):
        save(tmp_path / "photos" / "images" / f"{n}.{'bmp' if n == 3 else 'png'}", 10 * n)
        name = f"{n}.{'bmp' if n == 3 else 'png'}"
        lines += [f"{name},picture {n},0,0,4,4,left {n}", f"{name},picture {n},4,0,8,6,right {n}"]
        if n == 6:
            lines[-2:] = [f"{name},picture {n},,,,,"]
    (tmp_path / "photos" / "captions.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "photos"


def test_captions_and_boxes(captions, tmp_path, capsys):
    assert main(["data", "shard", str(captions), str(tmp_path / "out"), "--samples", "3"]) == 0
    assert "7 images with captions and boxes in 3 shards" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "000000.tar", "000001.tar", "000002.tar", INDEX
    }  # fmt: skip
    data = shards.CaptionShards(tmp_path / "out", shuffle=0)
    found = {sample["caption"]: int(sample["inputs"].float().mean()) for sample in data}
    assert found == {f"picture {n}": 10 * n for n in range(7)}
    boxes = shards.CaptionShards(tmp_path / "out", boxes=True, shuffle=0)
    assert len(boxes) == 6 and "no box" in str(boxes.usage)
    for sample in boxes:
        where, number = sample["box_caption"].split()
        assert sample["caption"] == f"picture {number}"
        assert tuple(sample["box_inputs"].shape) == ((3, 4, 4) if where == "left" else (3, 6, 4))
        assert abs(int(sample["box_inputs"].float().mean()) - 10 * int(number)) <= 2


def test_the_index_is_there_and_files_stay_as_they_are(captions, tmp_path, monkeypatch):
    write_shards(captions, tmp_path / "a", samples=3)
    write_shards(captions, tmp_path / "b", samples=3)
    for name in ("000000.tar", "000001.tar", "000002.tar"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    inside = {}
    for path in (tmp_path / "a").glob("*.tar"):
        with tarfile.open(path) as tar:
            inside |= {member.name: tar.extractfile(member).read() for member in tar}
    original = {path.read_bytes() for path in (captions / "images").glob("*.png")}
    assert original <= {data for name, data in inside.items() if name.endswith(".child.png")}
    monkeypatch.setattr(tarfile, "open", lambda *_: pytest.fail("counted again"))
    assert len(shards.CaptionShards(tmp_path / "a")) == 7


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_labels(tmp_path, workers):
    for label, name in enumerate(("cat", "dog", "owl")):
        for n in range(3):
            save(tmp_path / "animals" / name / f"{n}.png", 50 * label + n)
    (tmp_path / "names.txt").write_text("owl\ncat\ndog\n")
    folder, out = str(tmp_path / "animals"), str(tmp_path / "out")
    arguments = f"data shard {folder} {out} --samples 4 --classes {tmp_path / 'names.txt'}".split()
    assert main([*arguments, "--workers", str(workers)]) == 0
    data = shards.ImageShards(out, None, shuffle=0)
    assert data.metainfo["classes"] == ("owl", "cat", "dog") and len(data.paths) == 3
    found = [(sample["label"], int(sample["inputs"][0, 0, 0])) for sample in data]
    assert sorted(found) == [
        (label, 50 * at + n) for label, at in enumerate((2, 0, 1)) for n in range(3)
    ]
    labels = [label for label, _ in found]
    assert labels != sorted(labels)  # classes are mixed


def test_what_is_wrong_is_named(captions, tmp_path):
    (captions / "images" / "2.png").write_bytes(b"no picture")
    with pytest.raises(HypvisionError, match=r"2\.png"):
        write_shards(captions, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("*out*"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(HypvisionError, match="not empty"):
        write_shards(captions, tmp_path / "full")
    with pytest.raises(HypvisionError, match="has no sub-folders|no folder"):
        write_shards(tmp_path / "full", tmp_path / "out")


def test_shards_of_the_other_kind_are_named(captions, tmp_path):
    save(tmp_path / "animals" / "cat" / "1.png", 1)
    write_shards(tmp_path / "animals", tmp_path / "labels")
    write_shards(captions, tmp_path / "captions")
    with pytest.raises(HypvisionError, match="no sample that can be used.*no caption: 000000.tar"):
        shards.CaptionShards(tmp_path / "labels")
    with pytest.raises(HypvisionError, match="no sample that can be used.*no (label|image)"):
        shards.ImageShards(tmp_path / "captions", None, classes=["cat"])
