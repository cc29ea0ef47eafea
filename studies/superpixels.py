#!/usr/bin/env python
"""Are HCFormer's clusters superpixels, or objects? ``python studies/superpixels.py WEIGHTS ...``.

Beside SLIC (scikit-image) and a grid of as many cells. With ``--images`` and ``--masks``, photos
and their label maps: boundary recall, undersegmentation error and achievable accuracy of the
clusters of the last block of each stage. With ``--emoji`` and ``--photos``, scenes of emoji: how
far the best of 8, 16 and 32 regions, formed without labels, overlaps an emoji. SLIC needs
``pip install scikit-image``.

    python studies/superpixels.py zoo:semantic-fpn_hcformer_nano.camvid \\ --images
        data/camvid/img/test --masks data/camvid/ann/test --emoji data/emoji --photos
        data/grocery/images/test
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
from hcformer_diagnosis import purity, spread, table
from PIL import Image
from scipy.ndimage import distance_transform_edt
from torch import Tensor

import hypvision
from hypvision.data.emoji_scenes import EmojiScenes
from hypvision.inference.progress import progress
from hypvision.io.errors import HypvisionError, guard
from hypvision.io.files import check_output, write_json
from hypvision.io.images import images_in, open_image, read_labels
from hypvision.viz.clusters import cluster_map, merge_regions, prepare_for

REACH = 2  # pixels within which a border counts as found
IGNORED = (11, 255)  # labels of no class: CamVid's void, and the usual one


def borders(labels: np.ndarray) -> np.ndarray:
    """Pixels whose right or lower neighbour has another label, bool ``(H, W)``."""
    found = np.zeros(labels.shape, bool)
    found[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    found[:-1] |= labels[:-1] != labels[1:]
    return found


def boundary_recall(regions: np.ndarray, classes: np.ndarray, reach: int = REACH) -> float:
    """Share of the borders of classes within ``reach`` pixels of a border of regions; NaN of one
    class alone."""
    truth = borders(classes)
    found = borders(regions)
    if not truth.any():
        return float("nan")
    return float((distance_transform_edt(~found)[truth] <= reach).mean()) if found.any() else 0.0


def undersegmentation(regions: np.ndarray, classes: np.ndarray) -> float:
    """Undersegmentation error of Neubert and Protzel (2012): each region bleeds, over each class
    that it touches, by the smaller of its parts inside and outside; the sum as a share of the
    pixels."""
    counts = overlaps(regions, classes)
    return float(np.minimum(counts, counts.sum(1, keepdims=True) - counts).sum() / counts.sum())


def best_overlaps(regions: np.ndarray, objects: list[np.ndarray]) -> list[float]:
    """For each mask the largest intersection over union with a region."""
    area = np.bincount(regions.ravel())
    common = [np.bincount(regions[mask], minlength=len(area)) for mask in objects]
    return [float((same / (area + mask.sum() - same)).max()) for same, mask in zip(common, objects)]


def overlaps(regions: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Pixels by region and class."""
    counts = np.zeros((regions.max() + 1, classes.max() + 1), np.int64)
    np.add.at(counts, (regions.ravel(), classes.ravel()), 1)
    return counts


def grid(count: int, height: int, width: int) -> np.ndarray:
    """About ``count`` nearly square cells, labels ``(H, W)``."""
    columns = max(1, min(width, round((count * width / height) ** 0.5)))
    rows = max(1, min(height, round(count / columns)))
    return (np.arange(height) * rows // height)[:, None] * columns + np.arange(
        width
    ) * columns // width


def slic(pixels: np.ndarray, count: int) -> np.ndarray:
    """SLIC's superpixels with the usual settings; called twice, as it gives fewer than one asks
    for."""
    try:
        from skimage.segmentation import slic as segments
    except ModuleNotFoundError as error:
        raise HypvisionError(
            "The comparison needs SLIC of scikit-image: pip install scikit-image"
        ) from error
    wanted = count
    for _ in range(2):
        found = np.unique(segments(pixels, n_segments=wanted, compactness=10), return_inverse=True)[
            1
        ]
        wanted = round(wanted * count / (int(found.max()) + 1))
    return found.reshape(pixels.shape[:2])


def clustering_network(weights: str) -> Any:
    """The network with clusters in a model of the zoo, or a checkpoint."""
    model: Any = hypvision.load(weights.removeprefix("zoo:"))
    network = getattr(model, "backbone", model)
    for wrapper in ("timm_model", "model"):  # of TimmBackbone, and of timm's features_only
        network = getattr(network, wrapper, network)
    if not hasattr(network, "forward_assignments"):
        raise HypvisionError(
            f"'{weights}' is a {type(network).__name__}, which does not cluster: take an HCFormer."
        )
    return network.eval()


def superpixels(network: Any, images: Path, masks: Path, count: int) -> list[dict[str, Any]]:
    """A row for each stage and method: means over images. Pixels without a class are a class of
    their own, but do not count in the achievable accuracy."""
    files = images_in(images)
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    for index in progress(spread(len(files), count), min(count, len(files)), "image"):
        image = open_image(files[index])
        classes = read_labels(masks / f"{Path(files[index]).stem}.png").astype(np.int64)
        pixels = np.asarray(image)
        size = classes.shape
        known = np.where(np.isin(classes, IGNORED), 255, classes)
        last = {
            entry.stage: entry.assignment
            for entry in network.forward_assignments(view(network, image))
        }
        for stage, assignment in last.items():
            own = np.unique(cluster_map(assignment, 0, size=size), return_inverse=True)[1].reshape(
                size
            )
            number = int(own.max()) + 1
            ways = {"clusters": own, "SLIC": slic(pixels, number), "grid": grid(number, *size)}
            for name, regions in ways.items():
                row = (int(regions.max()) + 1, boundary_recall(regions, known),
                undersegmentation(regions, known),
                       purity(regions, known))  # fmt: skip
                found.setdefault((stage, name), []).append(row)
    names = ("regions", "boundary recall", "undersegmentation", "achievable accuracy")
    return [
        {"stage": stage, "method": name} | dict(zip(names, map(float, np.nanmean(rows, 0))))
        for (stage, name), rows in found.items()
    ]


def objects(
    network: Any, emoji: Path, photos: Path, count: int, size: int = 128
) -> list[dict[str, Any]]:
    """A row for each number of regions and method: the mean best overlap with an emoji, and the
    share above a half."""
    data = EmojiScenes(emoji, photos, "test", length=count, size=size, augmented=False)
    found: dict[tuple[int, str], list[float]] = {}
    for index in progress(range(count), count, "scene"):
        scene = data.scene(index)
        x = view(network, Image.fromarray(scene.image))
        seen = [placed.mask for placed in scene.objects if placed.mask.any()]
        for number in (8, 16, 32):
            ways = {
                "clusters": merge_regions(network, x, number),
                "SLIC": slic(scene.image, number),
                "grid": grid(number, size, size),
            }
            for name, regions in ways.items():
                found.setdefault((number, name), []).extend(best_overlaps(regions, seen))
    return [
        {"regions": number, "method": name, "best overlap": float(np.mean(values)),
         "above a half": float(np.mean(np.array(values) > 0.5))}
        for (number, name), values in found.items()
    ]  # fmt: skip


def view(network: Any, image: Image.Image) -> Tensor:
    """What the network sees of an image, at its own size rounded to a multiple of 32."""
    return prepare_for(network, image, max(32, round(min(image.size) / 32) * 32), None, None)[1]


def run(args: Namespace) -> None:
    """Print the tables that were asked for."""
    if not (args.images and args.masks) and not (args.emoji and args.photos):
        raise HypvisionError("Give --images and --masks, or --emoji and --photos, or all four.")
    if args.json:
        check_output(args.json)
    network = clustering_network(args.weights)
    result = {}
    if args.images and args.masks:
        result["superpixels"] = superpixels(network, args.images, args.masks, args.count)
    if args.emoji and args.photos:
        result["objects"] = objects(network, args.emoji, args.photos, args.count)
    for name, rows in result.items():
        print(f"\n{name}\n{table(rows)}")
    if args.json:
        write_json(args.json, result, indent=1)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "weights", metavar="WEIGHTS", help="an HCFormer of the zoo, or a checkpoint"
    )
    for option, what in dict(
        images="photos", masks="their label maps, PNG of the same names",
        emoji="emoji (docs/data.md)", photos="photos behind the emoji",
    ).items():  # fmt: skip
        parser.add_argument(f"--{option}", type=Path, metavar="DIR", help=f"folder of {what}")
    parser.add_argument(
        "--count", type=int, default=100, metavar="N", help="images and scenes (default: 100)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the numbers")
    sys.exit(guard(run, parser.parse_args()))
