"""mmdet and mmseg read an image as everything else here does."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmdet")
from hypvision.io.images import open_image
from hypvision.openmmlab.images import read_bgr

XMP = b"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>"""  # noqa: E501


def turned(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    return dict(exif=exif)


@pytest.mark.parametrize("form", ["jpg", "png", "tif"])
@pytest.mark.parametrize(
    "note", [dict(), turned(6), turned(3), dict(xmp=XMP)], ids=["none", "6", "3", "6 in XMP"]
)
def test_images_are_turned_as_the_camera_says(tmp_path, form, note):
    ramp = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16)
    Image.fromarray(np.stack([ramp, 255 - ramp, ramp // 2], -1)).save(
        tmp_path / f"a.{form}", **note
    )
    found, expected = (
        read_bgr(tmp_path / f"a.{form}")[..., ::-1],
        np.asarray(open_image(tmp_path / f"a.{form}")),
    )
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= 3
