"""A tiny folder of emoji in the layout of hypvision.data.emoji: coloured squares with made-up
words."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

STYLES = (
    "noto",
    "noto-v1",
    "twemoji",
    "fluent",
    "fluent-flat",
    "openmoji",
    "fxemoji",
    "fluent-mono",
)
CLASSES = (
    ("mammal", "animal-mammal", "animal or plant"),
    ("open hand", "hand-fingers-open", "person or body part"),
)


def make_emoji(root: Path, per_split: int = 3, styles=STYLES, classes=CLASSES) -> Path:
    """``per_split`` emoji of each class in each split, ids ``SPLIT-CLASS-NUMBER``; ``fxemoji``
    lacks the first."""
    rng = np.random.default_rng(0)
    (root / "splits").mkdir(parents=True)
    rows, splits = [], {"train": [], "val": [], "test": []}
    for split, ids in splits.items():
        for label, (name, subgroup, _) in enumerate(classes):
            for number in range(per_split):
                ids.append(f"{split}-{label}-{number}")
                words = ["one", "two", "three", "four", "five"][: number + 1]
                rows.append(dict(id=ids[-1], name=f"{split} {name} {number}", keywords=words,
                group="Things",
                                 subgroup=subgroup, char="*", vendors=["noto"]))  # fmt: skip
    for style in styles:
        (root / "images" / style).mkdir(parents=True)
        for row in rows:
            if style == "fxemoji" and row["id"].endswith("-0"):
                continue
            pixels = np.full((64, 64, 3), 255, dtype=np.uint8)
            pixels[16:48, 8:40] = rng.integers(0, 200, 3)
            Image.fromarray(pixels).save(root / "images" / style / f"{row['id']}.png")
    (root / "emoji.json").write_text(json.dumps(rows))
    (root / "splits/emoji_split.json").write_text(json.dumps(splits))
    table = [  # with a group and counts, as in the folder that is published
        dict(
            label=i,
            classname=c[0],
            subgroup=c[1],
            group="Things",
            group_name=c[2],
            emoji=dict(train=per_split),
        )
        for i, c in enumerate(classes)
    ]
    (root / "splits/classes.json").write_text(json.dumps(table))
    return root
