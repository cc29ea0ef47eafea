"""Folders of images with captions and boxes: two forms of one table, and what can be wrong with
them."""

import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from hypvision.data.caption_folder import CaptionFolder, read_captions
from hypvision.io.errors import HypvisionError

HEAD = "image,caption,left,top,right,bottom,words\n"
TABLE = (
    HEAD + "a.png,a dog and a cat,0,0,4,4,a dog\na.png,a dog and a cat,4,2,8,6,a cat\nb.jpg,two "
    "birds,,,,,\n"
)


@pytest.fixture
def folder(tmp_path):
    """An image whose left half is black and whose right half is white, and a grey one."""
    (tmp_path / "images").mkdir()
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[:, 4:] = 255
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    Image.fromarray(np.full((5, 5, 3), 100, np.uint8)).save(tmp_path / "images" / "b.jpg")
    (tmp_path / "captions.csv").write_text(TABLE)
    return tmp_path


def test_captions_and_boxes(folder):
    whole = CaptionFolder(folder)
    assert (
        len(whole) == 2
        and whole[1]["caption"] == "two birds"
        and whole[0]["inputs"].shape == (3, 6, 8)
    )
    assert whole[1]["image"] == str(
        folder / "images/b.jpg"
    )  # one of another folder may have the same name
    data = CaptionFolder(folder, boxes=True)
    seen = set()
    for _ in range(30):
        sample = data[0]
        assert sample["inputs"].shape == (3, 6, 8) and sample["box_inputs"].shape == (3, 4, 4)
        assert sample["caption"] == "a dog and a cat"
        seen.add((sample["box_caption"], int(sample["box_inputs"].float().mean())))
    assert seen == {("a dog", 0), ("a cat", 255)}
    assert len(data) == 1 and "no box: b.jpg" in str(data.usage)
    data = CaptionFolder(folder, dict(input_size=4, is_training=True, normalize=False), boxes=True)
    assert data[0]["inputs"].shape == data[0]["box_inputs"].shape == (3, 4, 4)


def test_the_first_boxes_of_each_image(folder):
    """As UNCHA takes them: in their order, filled up where there are fewer."""
    for most, count in ((5, 2), (2, 2)):
        sample = CaptionFolder(folder, boxes=most)[0]
        means = sample["box_inputs"].float().flatten(1).mean(1).tolist()
        assert sample["box_inputs"].shape == (most, 3, 4, 4) and sample["box_count"] == count
        assert means == [0, 255, 0, 0, 0][:most]
        assert sample["box_caption"] == ["a dog", "a cat", "", "", ""][:most]


def test_both_tables_say_the_same(folder):
    rows = read_captions(folder)
    (folder / "captions.csv").unlink()
    lines = [
        dict(
            image=row.image,
            caption=row.caption,
            boxes=[dict(box=b.box, words=b.words) for b in row.boxes],
        )
        for row in rows
    ]
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [tuple(row) for row in read_captions(folder)] == [tuple(row) for row in rows]
    assert [len(row.boxes) for row in rows] == [2, 0] and rows[0].boxes[1].box == [4, 2, 8, 6]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            HEAD + "a.png,a dog,0,0,9,4,a dog\n",
            r"\[0, 0, 9, 4\] is not inside the image of 8 x 6 pixels",
        ),
        (HEAD + "a.png,a dog,-1,0,4,4,a dog\n", "is not inside the image"),
        (HEAD + "a.png,a dog,4,0,4,4,a dog\n", "is not inside the image"),
        (HEAD + "a.png,a dog,0,0,4,4, \n", "a box has no words"),
        (HEAD + "a.png,a dog,0,0,4,,a dog\n", "is not complete"),
        (HEAD + "a.png, ,,,,,\n", "caption without words"),
        (HEAD + "c.png,a dog,,,,,\n", "there is no '.*c.png'"),
        (HEAD + "../a.png,a dog,,,,,\n", "lies outside of"),
        (HEAD, "has no captions"),
        ("image\na.png\n", "has the columns image, but none is called caption"),
        ("file,text\na.png,a dog\n", "columns file, text, but none is called image or caption"),
        ("image;caption\na.png;a dog\n", "columns image;caption, but .* with ',' between them"),
    ],
)
def test_what_is_wrong_is_named(folder, table, message):
    (folder / "captions.csv").write_text(table)
    with pytest.raises(HypvisionError, match=message):
        CaptionFolder(folder)


@pytest.mark.parametrize(
    "line",
    ["{", '{"image": "a.png"}', '{"image": "a.png", "caption": "x", "boxes": [{"box": [1]}]}'],
)
def test_lines_that_are_wrong_are_named(folder, line):
    (folder / "captions.csv").unlink()
    (folder / "captions.jsonl").write_text(
        f'{{"image": "b.jpg", "caption": "two birds"}}\n{line}\n'
    )
    with pytest.raises(HypvisionError, match="captions.jsonl', line 2"):
        CaptionFolder(folder)


def test_a_folder_without_a_table_or_without_boxes(folder):
    (folder / "captions.csv").write_text("image,caption\na.png,a dog\n")
    assert len(CaptionFolder(folder)) == 1
    with pytest.raises(HypvisionError, match="No image has a box"):
        CaptionFolder(folder, boxes=True)
    (folder / "captions.csv").unlink()
    with pytest.raises(HypvisionError, match="no captions.csv or captions.jsonl"):
        CaptionFolder(folder)
