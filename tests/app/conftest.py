"""Drawn pictures for the app: one of an object, one of a scene, and a folder to search."""

import pytest
from PIL import Image

from hypvision.data.shapes import make_object, make_scene


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """``object.png`` (a house), ``scene.png``, a folder ``gallery`` with a sub-folder, and
    ``secret.png`` beside it."""
    root = tmp_path_factory.mktemp("pictures")
    Image.fromarray(make_object(4, "test", 128)[0]).save(root / "object.png")
    make_scene(0, "test", 128).image.save(root / "scene.png")
    colours = {
        "red.png": "red",
        "pink.png": (250, 90, 90),
        "round/blue.png": "blue",
        "round/navy.png": "navy",
    }
    for name, colour in colours.items():
        path = root / "gallery" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), colour).save(path)
    Image.new("RGB", (64, 64), "green").save(root / "secret.png")
    return root
