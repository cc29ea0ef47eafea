"""Compares the hierarchy of classes in the embeddings of a metric learner with the true hierarchy,
and draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch import Tensor

import hypvision.data.retrieval  # noqa: F401 - registers the data sets
from hypvision.data.samplers import evenly, members_of
from hypvision.engine.config import load_config
from hypvision.engine.metrics import tell_missing
from hypvision.geometry import Lorentz, lorentz
from hypvision.io import Metrics, Names, Plain, StrPath, ensure, require, require_finite
from hypvision.io.files import write_json
from hypvision.viz.disk import draw_embedding
from hypvision.viz.palette import palette
from hypvision.viz.sheet import save_figure
from hypvision.viz.tree import (
    average_linkage,
    cophenetic_correlation,
    cophenetic_distances,
    dendrogram_purity,
    draw_tree,
)

from .metric_learning_metrics import GroupTree, lca_heights


class EmbeddedClasses(NamedTuple):
    """Embeddings of labelled images, grouped by class: ``points`` (N, d) as the learner compares
    them, ``labels`` (N,) counted from 0, and for each class its name, its ``ancestors`` (the groups
    above it, from general to specific; () if it has none) and an example image."""

    points: Tensor
    labels: Tensor
    classes: list[str]
    ancestors: list[Names]
    examples: list[Image.Image]


@torch.inference_mode()
def embed_classes(
    learner: Any,
    config: Any,
    split: str = "both",
    per_class: int = 100,
    batch_size: int = 32,
    data_root: str | None = None,
    device: str = "cpu",
) -> EmbeddedClasses:
    """Embed the images of the config of a :class:`~hypvision.tasks.metric_learning.MetricLearner`
    that is on ``device``.

    ``split`` is ``"train"``, ``"test"`` or ``"both"``; at most ``per_class`` images of each class
    are embedded, evenly spread over the class. ``data_root`` replaces the config's ``data_root``,
    and with it every path below it; None keeps the config's."""
    found = EmbeddedClasses(torch.empty(0), torch.empty(0), [], [], [])
    points: list[Tensor] = []
    labels: list[int] = []
    numbers: dict[tuple[str, Names, int], int] = {}  # labels by name, groups and count
    if data_root:
        ensure(
            config.get("data_root"),
            "The config has no 'data_root', so --data-root has nothing to replace. Set "
            "data_root in the config.",
        )
        config = load_config(config, dict(data_root=data_root))
    for name in ("train", "test") if split == "both" else (split,):
        settings = config.dataset(name).to_dict()
        settings["transform"] = config.dataset("test").transform.to_dict()
        settings.pop("cache", None)
        data = DATASETS.build(settings)
        above = data.metainfo.get("ancestors")
        seen: Counter[Any] = Counter()  # tells apart classes of a split with the same name
        for label, members in members_of(data).items():
            named = data.metainfo["classes"][label], above[label] if above else ()
            place = (*named, seen[named])
            seen[named] += 1
            known = place in numbers  # the other split has this class, too
            chosen = members[evenly(len(members), per_class)].tolist()
            for start in range(0, len(chosen), batch_size):
                images = torch.stack(
                    [data[i]["inputs"] for i in chosen[start : start + batch_size]]
                )
                points.append(learner.comparable(learner.embed(images.to(device))).cpu())
            labels += [numbers.setdefault(place, len(numbers))] * len(chosen)
            if not known:
                found.classes.append(place[0])
                found.ancestors.append(place[1])
                found.examples.append(data.read(chosen[0]))
    return found._replace(points=torch.cat(points), labels=torch.tensor(labels))


def class_hierarchy(learner: Any, data: EmbeddedClasses, out: StrPath) -> Plain:
    """Measure and draw the hierarchy of the classes of :func:`embed_classes` with a learner on the
    CPU, and return the content of ``hierarchy.json``.

    Writes into ``out``: ``disk.png`` (samples, class centres and proxies in the Poincare disk),
    ``tree.png`` (the tree of the class centres), ``proxies.png`` (the tree of the class centres
    together with the proxies nearest to samples) and ``hierarchy.json``.
    """
    require("matplotlib", "viz")
    ensure(
        len(data.classes) >= 2,
        "A hierarchy needs at least two classes of data.",
    )
    report: Plain = dict(classes=list(data.classes), images=len(data.points))
    if learner.neck.manifold.learnable:
        report["curvature"] = learner.neck.manifold._value()
    points = places(learner, data)
    require_finite(points, lambda row: f"The embedding of sample {row}")
    if data.ancestors and data.ancestors[0]:
        report["cophenetic"] = recovered_hierarchy(points, data.labels, data.ancestors)
        report["purity"] = recovered_groups(points, data.labels, data.ancestors)
    _draw(learner, data._replace(points=points), Path(out), report)
    write_json(Path(out, "hierarchy.json"), report)
    return report


def places(learner: Any, data: EmbeddedClasses) -> Tensor:
    """Return the embeddings as points on the hyperboloid of curvature 1, ``(N, n + 1)``: those of a
    Euclidean learner, which are unit vectors, lie at the distance 1 from the origin."""
    return data.points if learner.space == "lorentz" else lorentz.expmap0(data.points, 1.0)


def recovered_hierarchy(
    points: Tensor, labels: Tensor, ancestors: Sequence[Sequence[str]]
) -> Metrics:
    """Measure how well the distances of class centres follow a hierarchy.

    Returns two cophenetic correlations with the true heights of the classes' lowest common
    ancestors: ``distances``, of the distances between the centres (Lorentz centroids), and
    ``tree``, of the heights of the centres' average-linkage tree. ``points`` ``(N, n + 1)`` have
    curvature 1, ``labels`` are ``(N,)``, and ``ancestors`` are those of
    :func:`hypvision.tasks.metric_learning_metrics.lca_heights`. Classes without a sample do not
    count; with one class, or true heights that are all the same, both are NaN."""
    require_finite(points, lambda row: f"The embedding of sample {row}")
    present = labels.unique()
    found = {"distances": math.nan, "tree": math.nan}
    if len(present) > 1:
        between = _between(points, labels)
        true = lca_heights(ancestors)[present][:, present].numpy()
        found["distances"] = cophenetic_correlation(between, true)
        found["tree"] = cophenetic_correlation(cophenetic_distances(average_linkage(between)), true)
    tell_missing("The recovered hierarchy", found)
    return found


def recovered_groups(
    points: Tensor, labels: Tensor, ancestors: Sequence[Sequence[str]]
) -> list[float]:
    """Return the dendrogram purity of the tree of class centres for each level of a hierarchy, from
    general to specific; the arguments are those of :func:`recovered_hierarchy`."""
    ancestors = [ancestors[number] for number in labels.unique().tolist()]
    tree = average_linkage(_between(points, labels))
    levels = GroupTree(ancestors).levels[1:]
    return [dendrogram_purity(tree, numbers.tolist()) for numbers in levels]


def _centres(points: Tensor, labels: Tensor) -> Tensor:
    order = labels.argsort(stable=True)
    groups = points.double()[order].split(labels.unique(return_counts=True)[1].tolist())
    return torch.stack([lorentz.centroid(group, None, 1.0) for group in groups])


def _between(points: Tensor, labels: Tensor, nodes: Sequence[Tensor] = ()) -> np.ndarray:
    """Return the distances between all class centres, and further ``nodes``, as a matrix that is
    exactly symmetric."""
    places = torch.cat([_centres(points, labels), *nodes])
    found: np.ndarray = lorentz.cdist(places, places, 1.0).numpy()
    return (found + found.T) / 2


def _draw(learner: Any, data: EmbeddedClasses, out: Path, report: Plain) -> None:
    points = data.points
    labels = data.labels
    classes = data.classes
    proxies = None
    if learner.hier_loss is not None:
        with torch.no_grad():
            proxies = learner.comparable(learner.hier_loss.points())
        require_finite(proxies, lambda row: f"The proxy {row}")
    save_figure(
        draw_embedding(points, labels.tolist(), Lorentz(1.0), classes, proxies),
        out / "disk.png",
        dpi=120,
    )
    colours = ["#{:02x}{:02x}{:02x}".format(*c) for c in palette(len(classes) + 2)[1:]]
    title = (
        f"cophenetic correlation {report['cophenetic']['tree']:.2f}"
        if "cophenetic" in report
        else ""
    )
    tree = average_linkage(_between(points, labels))
    save_figure(draw_tree(tree, classes, colours, data.examples, title), out / "tree.png", dpi=120)
    if proxies is None:
        return
    nodes = proxies.double()
    # Draw the proxies that serve as common ancestors: at most 40 of those nearest to some sample.
    counts = torch.bincount(
        lorentz.cdist(points.double(), nodes, 1.0).argmin(1), minlength=len(nodes)
    )
    used = counts.argsort(descending=True)[: min(40, int((counts > 0).sum()))]
    between = _between(points, labels, [nodes[used]])
    names = [*classes, *(f"proxy {i}" for i in used.tolist())]
    shades = [*colours[: len(classes)], *["#999999"] * len(used)]
    save_figure(draw_tree(average_linkage(between), names, shades), out / "proxies.png", dpi=120)
