"""Figures of what LatHAdapter has learned: the nearest classes and images of each attribute, and
all points on the Poincare disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.registry import MODELS
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from hypvision.checkpoints.match import load_trained
from hypvision.clip.adapters.lathadapter import LatentHierarchy
from hypvision.data.fewshot import FewShotDataset
from hypvision.data.preprocessing import set_preprocessing
from hypvision.data.samplers import evenly
from hypvision.engine.checkpoint import load
from hypvision.io import HypvisionError, StrPath, ensure
from hypvision.io.images import open_image
from hypvision.viz.disk import poincare_disk, to_disk
from hypvision.viz.sheet import contact_sheet, save_figure, save_image, titled_sheet

from .few_shot import FewShotCLIP
from .few_shot_benchmark import (
    CellSpec,
    Settings,
    cell_config,
    measured_checkpoint,
    read_result,
    tested_images,
)


class Places(NamedTuple):
    """Points of the ball: ``attributes`` (N, d), refined ``classes`` (C, d) and ``images`` (B, d);
    ``labels`` (B,) and ``numbers`` are the images' classes and numbers in the data set, ``names``
    the names of the classes."""

    attributes: Tensor
    classes: Tensor
    images: Tensor
    labels: Tensor
    numbers: list[int]
    names: tuple[str, ...]


def load_cell_model(folder: StrPath, root: StrPath) -> tuple[FewShotCLIP, CellSpec, Settings]:
    """Return the trained model of a finished cell, the cell and its settings, from its folder."""
    folder = Path(folder)
    ensure(
        (folder / "result.json").is_file(),
        f"'{folder}' is not a finished run of a few-shot benchmark (it has no result.json). "
        "Give the folder of a finished run, RESULTS/base2new/METHOD/...",
    )
    result = read_result(folder)
    spec = result.cell
    settings = replace(result.settings, root=str(root))
    path = measured_checkpoint(folder, settings.best_val)
    if path is None:
        raise HypvisionError(
            f"There is no checkpoint in '{folder}', so its model cannot be drawn. Run the cell "
            "again."
        )
    model = MODELS.build(cell_config(spec, settings).model)
    load_trained(model, load(path), path)
    return model.eval(), spec, settings


@torch.no_grad()
def places(model: FewShotCLIP, dataset: FewShotDataset, most: int = 400) -> Places:
    """Return the points of attributes, of classes and of at most ``most`` images, which are evenly
    spaced over the sorted data set."""
    hierarchy: LatentHierarchy | None = model.hierarchy
    if hierarchy is None or not hierarchy.config.hierarchy:
        raise HypvisionError(
            "This cell has no LatHAdapter with a hierarchy. Give a cell of a method with +lath."
        )
    device = next(model.parameters()).device
    model.set_data(dataset.metainfo)
    set_preprocessing(dataset, model.host.clip)
    images = []
    labels = []
    text = torch.empty(0)
    numbers = evenly(len(dataset), most)
    for sample in DataLoader(Subset(dataset, numbers), 50):
        out = model.host(sample["inputs"].to(device))
        image, text = model.adapter_features(out)
        images.append(hierarchy.lift(image))
        labels.append(sample["label"])
        text = text if text.dim() == 2 else text[0]
    _, classes = hierarchy.classes(text)
    attributes = hierarchy.lift(hierarchy.nodes())
    seen = torch.cat(images)
    names = model.host.names
    return Places(attributes.cpu(), classes.cpu(), seen.cpu(), torch.cat(labels), numbers, names)


def attribute_sheet(
    placed: Places, hierarchy: LatentHierarchy, paths: Sequence[str]
) -> Image.Image:
    """Return a picture with a row for each attribute: its eight nearest images, and below them the
    names of its five nearest classes."""
    to_class = hierarchy.ball.cdist(placed.attributes, placed.classes)
    to_image = hierarchy.ball.cdist(placed.attributes, placed.images)
    rows = []
    for number, (classes, images) in enumerate(zip(to_class, to_image)):
        nearest = classes.topk(min(5, len(classes)), largest=False).indices.tolist()
        words = f"attribute {number + 1}: {', '.join(placed.names[i] for i in nearest)}"
        shown = images.topk(min(8, len(images)), largest=False).indices.tolist()
        rows.append((contact_sheet([open_image(paths[i]) for i in shown], len(shown), 72), words))
    return titled_sheet(rows, columns=1)


def draw_places(placed: Places, hierarchy: LatentHierarchy, path: StrPath, title: str = "") -> None:
    """Draw classes, attributes and images on the Poincare disk, with a line from each attribute to
    its nearest class.

    Distances from the middle are exact; angles are those in the plane of largest variance.
    """
    kinds = placed.images, placed.attributes, placed.classes
    xy = to_disk(torch.cat(kinds), hierarchy.ball, "origin")
    images, attributes, classes = np.split(xy, np.cumsum([len(points) for points in kinds[:2]]))
    figure, disk = poincare_disk(8.0)
    disk.points(images, colours=placed.labels.tolist(), s=8, alpha=0.5, zorder=1)
    nearest = hierarchy.ball.cdist(placed.attributes, placed.classes).argmin(1).numpy()
    disk.geodesics(attributes, classes[nearest], color="0.6", linewidth=0.7)
    labels = list(placed.names) if len(placed.names) <= 60 else None
    disk.points(classes, labels=labels, s=26, marker="s", color="black", zorder=3)
    names = [f"A{number + 1}" for number in range(len(attributes))]
    disk.points(attributes, labels=names, s=60, marker="^", color="crimson", zorder=4)
    disk.axes.set_title(title)
    save_figure(figure, path, dpi=140)


def explain_cell(folder: StrPath, root: StrPath, out: StrPath | None = None) -> list[Path]:
    """Draw ``attributes.png`` and ``disk.png`` for the finished cell in a folder, from its test
    images; ``root`` is the folder of all data sets, ``out`` the folder of the pictures (default:
    the cell's). Returns the paths of the pictures."""
    model, spec, settings = load_cell_model(folder, root)
    data = tested_images(
        spec.dataset, "base" if spec.protocol == "base2new" else "all", spec, settings
    )
    placed = places(model, data)
    out = Path(out or folder)
    hierarchy = model.hierarchy
    assert hierarchy is not None, "places() has refused it"
    drawn = [out / "attributes.png", out / "disk.png"]
    paths = [data.paths[number] for number in placed.numbers]
    save_image(attribute_sheet(placed, hierarchy, paths), drawn[0])
    draw_places(placed, hierarchy, drawn[1], f"{spec.method} on {spec.dataset}, {spec.shots} shots")
    return drawn
