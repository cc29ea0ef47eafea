#!/usr/bin/env python
"""Draw what words find on photos, before and after tuning, with what ships:
``python studies/draw_words.py docs/images/hyperclip/emoji.png``, and for README, which is narrower,
``... docs/images/readme/words.png --side 144 --columns 2 --rows 1``. Both are drawn at the width at
which they are shown, so that their letters keep their size.
"""

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from hypvision.clip.segmentation.segment import load_segmenter, segment
from hypvision.data.emoji_export import export_emoji
from hypvision.engine.config import load_config
from hypvision.io.errors import guard
from hypvision.io.images import images_in, open_image, read_labels
from hypvision.viz.clusters import enlarge
from hypvision.viz.overlay import add_legend, paint
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import save_image, titled_sheet

DEMO = Path("tools/demo_data")
CONFIG = "configs/hyperclip/emoji-words_hyperclip_150i.py"


def scenes(folder: Path, shown: int) -> list[tuple[Image.Image, np.ndarray]]:
    """Scenes of the validation data with their labels ``(H, W)``."""
    export_emoji(
        folder, DEMO / "emoji", DEMO / "photos", "masks", train=1, val=shown, size=96,
        level="class", val_emoji="train",
    )  # fmt: skip
    files = images_in(folder / "val/images"), images_in(folder / "val/masks")
    return [(open_image(image), read_labels(mask)) for image, mask in zip(*files)]


def named(labels: np.ndarray) -> list[int]:
    """The labels but 0 whose names stand below a tile: those with a fiftieth of the pixels."""
    present, counts = np.unique(labels, return_counts=True)
    return [
        int(label) for label, count in zip(present, counts) if label and count >= labels.size / 50
    ]


def colours_of(maps: list[np.ndarray], count: int) -> np.ndarray:
    """Colours of the labels from 1 to ``count``, uint8 ``(count, 3)``. Those that are named in the
    picture have the first ones, which differ most."""
    first = sorted({label for labels in maps for label in named(labels)})
    ordered = [*first, *(label for label in range(1, count + 1) if label not in first)]
    colours = np.empty((count, 3), np.uint8)
    colours[np.array(ordered) - 1] = label_colours(count)
    return colours


def tile(
    image: Image.Image,
    labels: np.ndarray,
    names: list[str],
    novel: list[str],
    colours: np.ndarray,
    side: int,
) -> Image.Image:
    """The photo, ``side`` pixels wide, with all but the label 0 painted in, above the names; a star
    marks those without a label in training."""
    large = image.resize((side, side), Image.Resampling.BICUBIC)
    shown = enlarge(labels, (side, side)).astype(int) - 1
    rows = [
        (names[label] + "*" * (names[label] in novel), colours[label - 1])
        for label in named(labels)
    ]
    return add_legend(paint(large, shown, colours, 0.6), rows, width=side)


def draw(out: Path, side: int = 166, columns: int = 4, rows: int = 2, shown: int = 40) -> None:
    """Write the picture: ``rows`` of the first ``shown`` scenes, four tiles ``side`` pixels wide of
    each."""
    settings = load_config(CONFIG)
    names, novel = list(settings.words), list(settings.novel_words)
    unseen = [names.index(name) for name in novel]
    before = load_segmenter(clip="zoo:emoji-t8.scenes")
    after = load_segmenter("zoo:hyperclip_t8.emoji")
    with tempfile.TemporaryDirectory() as folder:
        found = scenes(Path(folder, "scenes"), shown)
    # the first scenes with a held-out class, whatever the models make of them
    chosen = [(image, truth) for image, truth in found if np.isin(truth, unseen).any()]
    maps = [
        [truth, *(segment(image, names, model).labels for model in (before, after))]
        for image, truth in chosen[:rows]
    ]
    colours = colours_of([labels for row in maps for labels in row], len(names))
    tiles = []
    for (image, _), row in zip(chosen, maps):
        drawn = [image.resize((side, side), Image.Resampling.BICUBIC)]
        drawn += [tile(image, labels, names, novel, colours, side) for labels in row]
        height = max(part.height for part in drawn)
        # photos at one height, above names of different number
        level = [
            ImageOps.pad(part, (side, height), color="white", centering=(0, 0)) for part in drawn
        ]
        tiles += zip(level, ("photo", "truth", "before tuning", "with HyperCLIP"))
    # A palette of the whole picture would give like colours of the legend one colour.
    save_image(titled_sheet(tiles, columns=columns), out)
    print(out)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the picture")
    for name, default, text in (
        ("side", 166, "width of a tile in pixels"),
        ("columns", 4, "tiles in a row"),
        ("rows", 2, "number of scenes"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    sys.exit(guard(lambda args: draw(**vars(args)), parser.parse_args()))
