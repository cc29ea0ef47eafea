"""One way to open images: what comes out is what a viewer shows, and what attacks the reader is
refused."""

import importlib
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.bad_images import BAD_IMAGES
from helpers.cases import each
from helpers.processes import forked
from PIL import Image

from hypvision.io import images
from hypvision.io.errors import HypvisionError
from hypvision.io.images import (
    find_images,
    image_size,
    images_in,
    open_image,
    output_names,
    read_labels,
    shown_size,
    to_rgb,
)

RAMP = np.linspace(0, 65535, 48 * 64).reshape(48, 64)


@each("name", BAD_IMAGES)
@each("reader", [open_image, read_labels])
def test_bad_files_are_refused_by_name(tmp_path, monkeypatch, name, reader):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(BAD_IMAGES[name])
    with pytest.raises(HypvisionError, match=name):
        reader(tmp_path / name)


def test_no_interpreter_is_started(tmp_path, monkeypatch):
    """An EPS called .png made Pillow start Ghostscript."""
    path = tmp_path / "postscript.png"
    path.write_bytes(BAD_IMAGES["postscript.png"])
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a process was started")
    )
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    with Image.open(path) as image:
        assert image.format == "EPS"  # Pillow by itself would take it
    with pytest.raises(HypvisionError, match="none of BMP, GIF, JPEG"):
        open_image(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(BAD_IMAGES["bomb.png"])
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", None
    )  # other libraries switch Pillow's own limit off
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was unpacked"))
    with pytest.raises(HypvisionError, match="60000 x 60000 pixels"):
        open_image(path)


@each("most, size", [(1200, (40, 30)), (1199, (20, 15)), (299, (10, 8)), (79, (5, 4))])
def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(tmp_path, most, size):
    """Of 8 x 8 blocks JPEG decodes 4 x 4, 2 x 2 or 1 pixels; the sides are rounded up."""
    left_to_right = np.tile(np.arange(0, 240, 6, dtype=np.uint8), (30, 1))
    Image.fromarray(left_to_right).save(tmp_path / "grey.jpg", quality=95)
    found = open_image(tmp_path / "grey.jpg", most)
    assert found.size == size
    expected = np.asarray(
        Image.fromarray(left_to_right).resize(size, Image.Resampling.BOX), dtype=float
    )
    assert abs(np.asarray(found)[..., 0] - expected).mean() < 6
    with pytest.raises(HypvisionError, match="grey.jpg.*40 x 30 pixels, more than 19 "):
        open_image(tmp_path / "grey.jpg", 19)
    Image.fromarray(left_to_right).save(tmp_path / "grey.png")
    with pytest.raises(HypvisionError, match="grey.png.*40 x 30 pixels, more than 1,199 "):
        open_image(tmp_path / "grey.png", 1199)


def test_pipes_devices_and_folders_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    done = []

    def read():
        for place in (tmp_path / "pipe.png", "/dev/zero", tmp_path, tmp_path / "none.png"):
            with pytest.raises(
                HypvisionError, match="is a (pipe|device|folder), not a file|There is no image"
            ):
                open_image(place)
        done.append(True)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert done


def test_sixteen_bits_keep_their_shades(tmp_path):
    values = RAMP.astype(np.uint16)
    expected = np.repeat((values // 257).astype(np.uint8)[..., None], 3, 2)
    Image.fromarray(values).save(tmp_path / "grey.png")
    Image.fromarray(values).save(tmp_path / "grey.tif")
    (tmp_path / "grey.pgm").write_bytes(b"P5 64 48 65535\n" + values.astype(">u2").tobytes())
    for name in ("grey.png", "grey.tif", "grey.pgm"):
        found = open_image(tmp_path / name)
        assert found.mode == "RGB"
        assert (np.asarray(found) == expected).all(), name
    assert (read_labels(tmp_path / "grey.png") == values).all()
    with pytest.raises(HypvisionError, match="mode F"):
        to_rgb(Image.fromarray(RAMP.astype(np.float32)))
    with pytest.raises(HypvisionError, match="mode I,"):
        to_rgb(Image.fromarray(np.full((4, 4), 10**6, np.int32)))


@each("turn", range(1, 9))
def test_images_are_turned_as_the_camera_says(tmp_path, turn):
    upright = Image.fromarray(np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3))
    # What a camera stores for an upright scene, by the definition of the tag: rows and columns of
    # the scene.
    pixels = np.asarray(upright)
    stored = {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1],
        5: pixels.transpose(1, 0, 2), 6: pixels.transpose(1, 0, 2)[::-1],
        7: pixels.transpose(1, 0, 2)[::-1, ::-1], 8: pixels.transpose(1, 0, 2)[:, ::-1],
    }[turn]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = turn
    for name in ("photo.png", "photo.tif"):
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / name, exif=exif)
        assert (np.asarray(open_image(tmp_path / name)) == pixels).all()
        assert (
            image_size(tmp_path / name) == stored.shape[:2]
            and shown_size(tmp_path / name) == pixels.shape[:2]
        )


def test_colours_are_those_that_are_shown(tmp_path):
    red = Image.new("RGB", (8, 8), (200, 30, 40))
    red.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "palette.png")
    red.convert("CMYK").save(tmp_path / "cmyk.tif")
    clear = red.convert("RGBA")
    clear.putpixel((0, 0), (9, 9, 9, 0))  # a colour that nobody sees
    clear.save(tmp_path / "clear.png")
    keyed = Image.new("P", (8, 8), 1)
    keyed.putpalette([9, 9, 9, 200, 30, 40])
    keyed.putpixel((0, 0), 0)
    keyed.save(tmp_path / "keyed.png", transparency=0)
    Image.new("LA", (8, 8), (7, 0)).save(tmp_path / "grey.png")
    Image.new("1", (8, 8), 1).save(tmp_path / "bits.png")
    for name in ("palette.png", "cmyk.tif", "clear.png", "keyed.png"):
        assert (
            np.abs(np.subtract(open_image(tmp_path / name).getpixel((4, 4)), (200, 30, 40))).max()
            <= 2
        ), name
    for name in ("clear.png", "keyed.png", "grey.png", "bits.png"):
        assert open_image(tmp_path / name).getpixel((0, 0)) == (255, 255, 255), name


def test_arrays_and_other_things():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (np.asarray(open_image(pixels)) == pixels).all()
    for wrong in (pixels[..., :2], pixels.astype(float), pixels[:0], pixels[0], 3, None):
        with pytest.raises(HypvisionError, match="array"):
            open_image(wrong)


def test_finding(tmp_path):
    for name in ("b.PNG", "a.jpg", "notes.txt", "deep/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find_images([tmp_path, tmp_path / "a.jpg"])
    assert [path.name for path in found] == ["a.jpg", "b.PNG", "c.webp"]
    assert [path.name for path in find_images([f"{tmp_path}/**/*.webp"])] == ["c.webp"]
    assert [path.name for path in images_in(tmp_path)] == ["a.jpg", "b.PNG", "c.webp"]
    (tmp_path / "empty").mkdir()
    for wrong in (
        tmp_path / "none.png",
        f"{tmp_path}/*.gif",
        tmp_path / "empty",
        "x" * 5000,
        "a\0b",
        "~nobody-here/x",
    ):
        with pytest.raises(HypvisionError):
            find_images([wrong])
    for wrong in (tmp_path / "none", tmp_path / "empty", tmp_path / "a.jpg"):
        with pytest.raises(HypvisionError, match="folder"):
            images_in(wrong)
    assert output_names([tmp_path / "a.jpg", tmp_path / "deep/a.png", tmp_path / "b.PNG"]) == [
        "a",
        "deep_a",
        "b",
    ]
    assert output_names([Path("x/a.jpg"), Path("x/a.png")]) == ["a", "a-2"]
    assert output_names([Path("x/a.jpg"), Path("x/b.png")]) == ["a", "b"]
    apart = [Path("/d/train/a/0.jpg"), Path("/d/val/a/0.jpg"), Path("/d/val/b/1.jpg")]
    assert output_names(apart) == ["train_a_0", "val_a_0", "val_b_1"]
    assert output_names([Path("../a.jpg"), Path("/a.jpg"), Path("x/a.jpg")]) == ["a", "a-2", "x_a"]
    assert set(images.SUFFIXES) == {suffix.lower() for suffix in images.SUFFIXES}


def test_names_of_results_are_unique_short_and_found_in_linear_time():
    assert output_names([Path(f"{i}/x/a.png") for i in range(20_000)])[9] == "9_x_a"
    names = output_names(
        [Path(f"a.{i}") for i in range(20_000)] + [Path("a-2.png"), Path("a-20000.jpg")]
    )
    assert (
        len(set(names)) == 20_002
        and names[:2] == ["a", "a-2"]
        and names[-2:] == ["a-2-2", "a-20000-2"]
    )
    long = output_names([Path("é" * 125 + ".png"), Path("é" * 124 + "x.png")])
    assert long == ["é" * 100, "é" * 100 + "-2"] and output_names([Path("\udcff.png")]) == [
        "\udcff"
    ]


def test_heic_is_read_where_pillow_heif_is_installed(tmp_path):
    (tmp_path / "pillow_heif.py").write_text(
        "def register_heif_opener():\n    print('registered')\n"
    )

    def imported():
        sys.path.insert(0, str(tmp_path))
        again = importlib.reload(images)
        print("HEIF" in again.FORMATS and ".heic" in again.SUFFIXES)

    assert forked(imported).output.split() == ["registered", "True"]


def test_warnings_of_pillow_are_silenced_for_our_reading_alone(tmp_path):
    before = list(warnings.filters)
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        open_image(path)
        warnings.warn_explicit(
            "large", Image.DecompressionBombWarning, "PIL/Image.py", 1, module="PIL.Image"
        )
    assert [str(item.message) for item in told] == ["large"]
    assert list(warnings.filters) == before and not any("PIL" in str(f[3]) for f in before if f[3])
