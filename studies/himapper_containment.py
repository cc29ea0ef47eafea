#!/usr/bin/env python
"""Do the maps of parents cover those of their children?
``PYTHONPATH=tests python studies/himapper_containment.py CONFIG WEIGHTS``.

Looks at the drawn scenes of the tests, which nothing was trained on, and prints the containment
score beside chance (other nodes of the parent's level), level by level, and the same for the tree
before fine-tuning (``--start``: the model as a training begins it).
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.io.errors import HypvisionError, guard


class Containment(NamedTuple):
    """The result of :func:`containment`; each number lies between 0 and 1."""

    score: float  # mean share of a child's map inside the region of its parent
    # mean share of a child's map inside the regions of the other nodes of the parent's level
    chance: float
    wins: float  # share of the children for which the parent has more than these others on average


def containment(maps: Sequence[Tensor], mass: float = 0.5) -> Containment:
    """How well the maps of parents cover those of their children.

    The region of a node is the smallest set of pixels that holds the share ``mass`` of its map.

    Args:
        maps: of the levels from the finest, ``(B, n_l, h, w)`` or ``(n_l, h, w)``, >= 0.
        mass: share of its map that a region holds.

    Raises:
        ValueError: fewer than two levels, or a single node in the coarsest, which has no others to
            compare with.
    """
    if len(maps) < 2 or maps[-1].shape[-3] < 2:
        raise ValueError(
            "Containment compares the map of a node with that of its ancestor and with those of "
            "the ancestor's neighbours, so maps must have at least two levels, and the coarsest at "
            "least two nodes."
        )
    scores = []
    chances = []
    for children, parents in zip(maps, maps[1:]):
        flat, region = (
            level.flatten(-2) / level.sum((-2, -1))[..., None].clamp(min=1e-12)
            for level in (children, parents)
        )
        ordered, order = region.sort(-1, descending=True)
        inside = torch.zeros_like(region).scatter(
            -1, order, ((ordered.cumsum(-1) - ordered) < mass).to(region.dtype)
        )
        shares = flat @ inside.mT  # (..., n, n / 2)
        count = shares.shape[-1]
        own = torch.arange(shares.shape[-2]) // 2
        mine = shares[..., torch.arange(len(own)), own]
        scores.append(mine.flatten())
        chances.append(((shares.sum(-1) - mine) / (count - 1)).flatten())
    score = torch.cat(scores)
    chance = torch.cat(chances)
    return Containment(
        score.mean().item(), chance.mean().item(), (score > chance).double().mean().item()
    )


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
    from hypvision.viz.hierarchy_tree import part_maps

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
