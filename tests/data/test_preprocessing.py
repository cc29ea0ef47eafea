"""The view of a CLIP takes a PIL image of any kind as it is shown: as the file opened by
open_image."""

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image

from hypvision.data.preprocessing import Preprocessing
from hypvision.io.images import open_image

SIZES = ((64, 64), (65, 37), (7, 200), (1, 1), (3, 500))
MODES = ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "turned", "keyed")


def picture(mode, size=(40, 24)):
    """A picture with another colour in each corner."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    image = image.resize(size, Image.Resampling.NEAREST)
    if mode == "I;16":
        grey = np.array(image.convert("L")).astype(np.uint16)
        return Image.fromarray(grey * 257)
    if mode in ("RGBA", "LA"):
        image.putalpha(image.convert("L"))
        return image.convert(mode)
    return image if mode in ("turned", "keyed") else image.convert(mode)


@pytest.fixture
def file(tmp_path):
    def write(mode):
        path = tmp_path / f"{mode.replace(';', '')}.{'tif' if mode == 'CMYK' else 'png'}"
        image = picture(mode)
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera lay on its side
        options = {}
        if mode == "turned":
            options["exif"] = exif
        if mode == "keyed":
            options["transparency"] = image.getpixel((0, 0))
        image.save(path, **options)
        return path

    return write


@each("mode", MODES)
def test_any_image_is_taken_as_it_is_shown(mode, file):
    path = file(mode)
    shown = open_image(path)
    for resize_mode in ("shortest", "longest", "squash"):
        view = Preprocessing((16, 16), resize_mode=resize_mode)
        expected = view(shown)
        assert expected.shape == (3, 16, 16) and expected.dtype == torch.uint8
        with Image.open(path) as opened:
            assert torch.equal(view(opened), expected)
    if mode == "turned":
        assert shown.size == (24, 40)


@each("exif", [b"Exif\0\0garbage!!", b"Exif\0\0XX*\0\0\0", b"Exif\0\0II*\0"])
def test_damaged_tags_say_nothing(exif, tmp_path):
    image = picture("RGB")
    image.save(tmp_path / "a.jpg", exif=exif)
    view = Preprocessing((16, 16))
    with Image.open(tmp_path / "a.jpg") as opened:
        assert torch.equal(view(opened), view(open_image(tmp_path / "a.jpg")))


@each("size", SIZES)
@each("mode", ["shortest", "longest", "squash"])
def test_any_size_gives_the_size_of_the_model(size, mode):
    for target in ((16, 16), (16, 24)):
        view = Preprocessing(target, resize_mode=mode)
        assert view(picture("RGB", size)).shape == (3, *target)
