"""Pictures for the app: an emoji, emoji on a photo, and a folder to search."""

from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """``object.png`` (a monkey), ``scene.png``, a folder ``gallery`` with a sub-folder, and
    ``secret.png`` beside it."""
    root = tmp_path_factory.mktemp("pictures")
    monkey = Image.open(ROOT / "tools/demo_data/emoji/images/noto/1f435.png").convert("RGB")
    monkey.resize((128, 128)).save(root / "object.png")
    Image.open(ROOT / "hypvision/app/examples/scene0.jpg").resize((128, 128)).save(
        root / "scene.png"
    )
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
