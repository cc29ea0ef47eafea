#!/usr/bin/env python
"""Do the maps of parents cover those of their children?
``PYTHONPATH=tests python studies/himapper_containment.py CONFIG WEIGHTS``.

Looks at the drawn scenes of the tests, which nothing was trained on, and prints the containment
score of :mod:`hypvision.viz.hierarchy_tree` beside chance (other nodes of the parent's level),
level by level, and the same for the tree before fine-tuning (``--start``: the model as a training
begins it).
"""

import json
import sys
from argparse import ArgumentParser, Namespace

import torch

from hypvision.io.errors import HypvisionError, guard


def build(config, weights: str | None):
    """The Hi-Mapper of a config, with trained weights, or as its training starts."""
    from mmengine.registry import MODELS
    from mmengine.runner import load_checkpoint

    model = MODELS.build(
        dict(config.model, backbone=dict(config.model.backbone, dynamic_img_size=True))
    )
    if weights is None:
        model.init_weights()
    else:
        load_checkpoint(model, weights, map_location="cpu", strict=True)
    return model.backbone.eval()


def measure(model, images: torch.Tensor, batch: int = 25) -> dict[str, dict[str, float]]:
    """Containment at every pair of levels and of all."""
    from hypvision.viz.hierarchy_tree import containment, part_maps

    found = [part_maps(model, part)[0] for part in images.split(batch)]
    maps = [torch.cat(level) for level in zip(*found)]
    pairs = {"all": maps} | {f"{i} in {i + 1}": maps[i : i + 2] for i in range(len(maps) - 1)}
    return {
        name: {k: round(v, 4) for k, v in containment(levels)._asdict().items()}
        for name, levels in pairs.items()
    }


def run(args: Namespace) -> None:
    import numpy as np
    from helpers.shapes.images import ShapesScenes

    import hypvision.openmmlab
    import hypvision.tasks  # noqa: F401 - registers the classifier
    from hypvision.engine.config import load_config
    from hypvision.tasks.publishing import image_input

    config = load_config(args.config)
    if config.model.type != "HierarchyClassifier":
        raise HypvisionError(
            f"'{args.config}' trains a {config.model.type}, not a HierarchyClassifier."
        )
    if args.weights is None and not args.start:
        raise HypvisionError(
            "Give the WEIGHTS of a training, or --start for the model as the training begins it."
        )
    seen = image_input(config)
    mean = torch.tensor(seen["mean"])
    std = torch.tensor(seen["std"])
    scenes = ShapesScenes("test", length=args.scenes, size=args.size)
    pixels = torch.from_numpy(np.stack([np.asarray(scene.image) for scene in scenes])).float() / 255
    images = ((pixels - mean) / std).permute(0, 3, 1, 2)
    torch.manual_seed(0)
    model = build(config, None if args.start else args.weights)
    print(json.dumps(measure(model, images)))


if __name__ == "__main__":
    parser = ArgumentParser(
        description="Containment of the maps of Hi-Mapper's tree on drawn scenes."
    )
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("weights", metavar="WEIGHTS", nargs="?")
    parser.add_argument("--start", action="store_true", help="the model as the training begins it")
    parser.add_argument("--scenes", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--size", type=int, default=64, help="their side in pixels (default: 64)")
    sys.exit(guard(run, parser.parse_args()))
