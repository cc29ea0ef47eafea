#!/usr/bin/env python
"""In which sentences does a CLIP of the zoo know the names of its classes best?
``python tools/choose_templates.py NAME [--cfg-options data_root=DATA ...]``.

Prints as JSON the zero-shot accuracy in percent of each candidate on the validation data of the
record's config, so that ``templates`` of a record are never chosen on test data. Where a config
tests on its validation data, ``--cfg-options val_dataloader.dataset.KEY=VALUE`` names other
pictures.

    python tools/choose_templates.py emoji-s16.captions --cfg-options data_root=data/emoji
    python tools/choose_templates.py emoji-t8.scenes \\
        --cfg-options val_dataloader.dataset.data_prefix.img_path=train/images \\
        val_dataloader.dataset.data_prefix.seg_map_path=train/masks
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser

import torch
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from hypvision.checkpoints.index import builtin_index
from hypvision.clip.models import create_clip
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.data.classes import SELECTED, TEMPLATES
from hypvision.data.emoji import TEMPLATES as EMOJI
from hypvision.engine.config import load_config, parse_options
from hypvision.io.errors import guard

CANDIDATES: dict[str, tuple[str, ...]] = {
    "the name alone": ("{}",),
    **TEMPLATES,
    "a photo of a {}.": ("a photo of a {}.",),
    "a photo of {}": ("a photo of {}",),
    "a picture of a {}": ("a picture of a {}",),
    "a picture of a {}.": ("a picture of a {}.",),
    "an emoji of a {}": ("an emoji of a {}",),
    "the four of EmojiCaptions": EMOJI,
    "these four and the name": ("{}", *EMOJI),
    "CLIP's seven": SELECTED,
}


@torch.no_grad()
def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("name", help="of a CLIP in the zoo")
    parser.add_argument("--cfg-options", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    record = builtin_index().get(args.name)
    config = load_config(record.config, parse_options(args.cfg_options))
    clip = create_clip(record.model, f"zoo:{record.name}")
    images = []
    labels = []
    for batch in DataLoader(DATASETS.build(config.val_dataloader.dataset), batch_size=100):
        images.append(clip.embed_images(batch["inputs"]))
        labels.append(batch["label"])
    points = torch.cat(images)
    found = {}
    for name, templates in CANDIDATES.items():
        model = OpenVocabularyCLIP()
        options = dict(tune="frozen", dense=False)
        model.build_clip(clip, classes=record.classes, templates=templates, **options)
        best = clip.similarity(points, model.class_points()).argmax(1)
        found[name] = round(100 * (best == torch.cat(labels)).float().mean().item(), 2)
    print(json.dumps(dict(images=len(points), accuracy=found), indent=2))


if __name__ == "__main__":
    sys.exit(guard(main))
