"""Tiny trees in the layouts of the few-shot benchmark."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SPLIT_SETS = {  # name -> folder, folder of images, split file
    "caltech101": ("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
    "oxford_pets": ("oxford_pets", "images", "split_zhou_OxfordPets.json"),
    "stanford_cars": ("stanford_cars", "", "split_zhou_StanfordCars.json"),
    "oxford_flowers": ("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json"),
    "food101": ("food-101", "images", "split_zhou_Food101.json"),
    "sun397": ("sun397", "SUN397", "split_zhou_SUN397.json"),
    "dtd": ("dtd", "images", "split_zhou_DescribableTextures.json"),
    "eurosat": ("eurosat", "2750", "split_zhou_EuroSAT.json"),
    "ucf101": ("ucf101", "UCF-101-midframes", "split_zhou_UCF101.json"),
}
NAMES = ["apple", "bird", "cup", "dice", "elk"]
WNIDS = [f"n0000000{i}" for i in range(1, 6)]


def write_image(path, shade, size=40):
    """A square in one colour with some noise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(str(path)) + 7 * shade).integers(0, 40, (size, size + 8, 3))
    Image.fromarray(
        (pixels + np.array([40 * shade, 200 - 40 * shade, 90])).clip(0, 255).astype(np.uint8)
    ).save(path)


def coop(root, name="caltech101", classes=5, train=6, val=3, test=2, size=40):
    """A data set with a split file."""
    folder, images, file = SPLIT_SETS.get(name, (name, "images", "split.json"))
    rows = {}
    for part, count in (("train", train), ("val", val), ("test", test)):
        rows[part] = [
            [f"{NAMES[c]}/{part}{i}.png", c, NAMES[c]] for i in range(count) for c in range(classes)
        ]
        for path, label, _ in rows[part]:
            write_image(root / folder / images / path, label, size)
    (root / folder / file).write_text(json.dumps(rows))
    return root


def folders(root, path, names, count=10):
    for label, name in enumerate(names):
        for i in range(count):
            write_image(root / path / name / f"{i:02}.png", label)


def imagenet(root, name):
    """ImageNet and its variants: class names in another order than the folders of some."""
    base = {"imagenet": "imagenet", "imagenetv2": "imagenetv2",
    "imagenet_sketch": "imagenet-sketch",
            "imagenet_a": "imagenet-adversarial",
            "imagenet_r": "imagenet-rendition"}[name]  # fmt: skip
    lines = [
        f"{wnid} {word}" for wnid, word in zip(WNIDS, ["great apple", "bird", "cup", "dice", "elk"])
    ]
    (root / base).mkdir(parents=True)
    (root / base / "classnames.txt").write_text("\n".join(lines))
    if name == "imagenet":
        folders(root, f"{base}/images/train", WNIDS, 3)
        folders(root, f"{base}/images/val", WNIDS, 2)
    elif name == "imagenetv2":
        folders(root, f"{base}/imagenetv2-matched-frequency-format-val", list("01234"), 2)
    elif name == "imagenet_sketch":
        folders(root, f"{base}/images", WNIDS, 2)
    else:
        folders(
            root, f"{base}/{'imagenet-a' if name == 'imagenet_a' else 'imagenet-r'}", WNIDS[1:4], 2
        )
    return root


def aircraft(root):
    folder = root / "fgvc_aircraft"
    names = ["707-320", "A380", "Cessna 172"]
    folder.mkdir(parents=True)
    (folder / "variants.txt").write_text("\n".join(names))
    for part, first in (("train", 0), ("val", 30), ("test", 60)):
        rows = [(f"{first + i:07}", names[i % 3]) for i in range(6)]
        (folder / f"images_variant_{part}.txt").write_text("\n".join(" ".join(row) for row in rows))
        for number, name in rows:
            write_image(folder / "images" / f"{number}.jpg", names.index(name))
    return root
