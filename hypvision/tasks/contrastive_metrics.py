"""Metrics of CLIP models: zero-shot accuracy, retrieval of image-text pairs, and the distance of
mistakes in a tree of classes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.clip.radial.retrieval import read_tree
from hypvision.clip.spaces import Modality, Space
from hypvision.data.closures import read_closure
from hypvision.engine.metrics import Metric
from hypvision.io import Ancestors, Metrics, Plain, refuse, some

from .classification_metrics import (
    ScoreMetric,
    TopKAccuracy,
    auroc,
    average_precision,
    read_ancestors,
)


@METRICS.register_module()
class ZeroShotAccuracy(TopKAccuracy):
    """:class:`~hypvision.tasks.TopKAccuracy` for zero-shot classification; by default only the most
    similar class counts.

    ``top1``, ... are shares of images; ``macro`` is the mean of the classes' ``top1``, the number
    in the tables of MERU, HyCoCLIP and their successors. As in these papers, a class that is
    predicted but never occurs counts as 0.
    """

    def __init__(self, topk: Sequence[int] = (1,), macro: bool = True, **kwargs: Any):
        super().__init__(tuple(topk), macro=macro, **kwargs)

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        metrics = super().compute_metrics(results)
        occurring = {label for _, label, _, _ in self.labelled(results, 1)}
        predicted = {best[0] for _, _, best, _ in self.labelled(results, 1)}
        if self.macro and occurring:
            metrics["macro"] *= len(occurring) / len(occurring | predicted)
        return metrics


@METRICS.register_module()
class HierarchicalErrors(ScoreMetric):
    """The errors of HyCoCLIP's evaluation (Pal et al., ICLR 2025) in a tree of classes, as means
    over the images.

    ``A_p`` and ``A_t`` are the ancestors of the predicted and of the true class, with the root but
    without the class itself. ``tie``, the tree-induced error, is the number of edges on the
    shortest path between both classes; ``lca`` is ``|A_p| - |A_p & A_t| + 1``; ``jaccard``,
    ``precision`` and ``recall`` compare ``A_p`` with ``A_t``. A sibling of the true class has 2, 1,
    1, 1 and 1. Several nodes without a parent lie under one root, which counts as an ancestor.

    Args:
        ancestors: the groups above each class, from general to specific, by the names of the
            classes, or a JSON file of this dict; the folder of BREEDS
            (:func:`hypvision.clip.radial.retrieval.read_tree`); or a file of pairs of a name and
            one of its ancestors (:func:`hypvision.data.closures.read_closure`), such as WordNet's,
            where a name may have several parents. Default: the ancestors in the data set.
    """

    NAMES = ("tie", "lca", "jaccard", "precision", "recall")

    def __init__(self, ancestors: Ancestors | str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.above = None if ancestors is None else _ancestors(ancestors)

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Return ``(best class, label)`` of each image."""
        return zip(scores.argmax(1).tolist(), [sample["label"] for sample in samples])

    def compute_metrics(self, results: list[tuple[int, int]]) -> Metrics:
        if not results:
            return dict.fromkeys(self.NAMES, math.nan)
        names = self.class_names()
        above = self._ancestors_of(names, (self.dataset_meta or {}).get("ancestors", ()))
        nodes = set(names).union(*(above[name] for name in names))
        root = {None} if [above[node] for node in nodes].count(set()) > 1 else set()
        own = [above[name] | root for name in names]
        neighbours = _neighbours({node: above[node] for node in nodes})
        _, labels = zip(*results)
        steps = {label: _steps(neighbours, names[label]) for label in set(labels)}
        rows = [
            _errors(own[guess], own[truth], steps[truth][names[guess]]) for guess, truth in results
        ]
        return dict(zip(self.NAMES, torch.tensor(rows, dtype=torch.float64).mean(0).tolist()))

    def _ancestors_of(self, names: Sequence[str], given: Sequence[Any]) -> dict[Any, set]:
        above = _ancestors(dict(zip(names, given))) if self.above is None else self.above
        missing = [name for name in names if name not in above]
        count = len(missing)
        sentence = (
            f"'ancestors' of HierarchicalErrors lacks {count} classes, e.g. {some(missing)}. Add "
            "them there."
        )
        refuse((missing, sentence))
        return above


def _errors(predicted: set, true: set, edges: int) -> tuple[float, ...]:
    """Return the errors of one prediction from the ancestors of both classes and the number of
    edges between them."""
    both = len(predicted & true)
    # The root of a tree has no ancestors, so none of its ancestors is wrong: its share is 1.
    shares = [both / len(own) if own else 1.0 for own in (predicted | true, predicted, true)]
    return edges, len(predicted) - both + 1, *shares


# A name, or for a group its path, because groups under different parents may have the same name.
Node = Hashable


def _ancestors(given: Ancestors | str) -> dict[Node, set[Node]]:
    """Return the ancestors of each class and of each group."""
    if isinstance(given, str) and not given.endswith(".json"):
        return _ancestors_in(Path(given).expanduser())
    found: dict[Node, set[Node]] = {}
    for name, groups in read_ancestors(given, "HierarchicalErrors").items():
        paths = [tuple(groups[: depth + 1]) for depth in range(len(groups))]
        for depth, group in enumerate(paths):
            found[group] = {*paths[:depth]}
        found[name] = {*paths}
    return found


def _ancestors_in(path: Path) -> dict[Node, set[Node]]:
    """Return the ancestors of each node in BREEDS' folder, or in a file of pairs."""
    if path.is_dir():
        return {node: set(above) for node, above in read_tree(path).ancestors.items()}
    closure = read_closure(path, transitive=True)
    names = closure.names
    return {
        name: {names[number] for number in numbers}
        for name, numbers in zip(names, closure.ancestors())
    }


def _neighbours(above: Mapping[Node, set[Node]]) -> dict[Node, set[Node]]:
    """Return the nodes one edge away from each node; nodes without a parent lie under one root."""
    root = object()
    found: dict[Node, set[Node]] = {node: set() for node in (root, *above)}
    for node, ancestors in above.items():
        between = set().union(*(above[ancestor] for ancestor in ancestors))
        for parent in ancestors - between or {root}:
            found[node].add(parent)
            found[parent].add(node)
    return found


def _steps(neighbours: Mapping[Node, set[Node]], start: Node) -> dict[Node, int]:
    """Return the number of edges from ``start`` to each node that can be reached."""
    found = {start: 0}
    level = {start}
    while level := {node for near in level for node in neighbours[near] if node not in found}:
        found |= dict.fromkeys(level, 1 + max(found.values()))
    return found


@torch.no_grad()
def cone_metrics(space: Space, general: Tensor, specific: Tensor, true: Tensor) -> Metrics:
    """Return how well entailment cones tell true pairs from false ones: the area under the ROC
    curve (``auc``) and the average precision (``ap``), from 0 to 1, of how far the specific point
    lies inside the cone of the general one (``cone``), and of the exterior angle alone
    (``angle``).

    Args:
        space: the space of the points; a sphere needs a root.
        general, specific: points ``(N, d)``, such as those of texts and of images.
        true: bool ``(N,)``, whether the pair is true.
    """
    angle = space.exterior_angle(general, specific)
    truth = true.cpu().numpy()
    found = {}
    for name, outside in (("cone", angle - space.half_aperture(general)), ("angle", angle)):
        scores = -outside.double().cpu().numpy()
        found[f"{name}_auc"] = auroc(scores, truth)
        found[f"{name}_ap"] = average_precision(scores, truth)
    return found


@METRICS.register_module()
class ImageTextRetrieval(Metric):
    """Recall, in percent, of images by their caption (``text_to_image_r1``, ...) and of captions by
    their image (``image_to_text_r1``, ...), among the first ``topk`` results. For an image with
    several captions each of them is a correct result, as is each image with the same caption;
    samples of the same image are recognised by its name. NaN if there are no pairs."""

    def __init__(self, topk: Sequence[int] = (1, 5, 10), **kwargs: Any):
        super().__init__(**kwargs)
        self.topk = tuple(topk)

    def process(self, data_batch: Any, data_samples: list[Plain]) -> None:
        for key in ("image", "text"):
            points = torch.stack([sample[key] for sample in data_samples])
            if not self.check(points, f"The point of the {key}", data_samples):
                return
        for sample in data_samples:
            self.space = sample["space"]
            pair = sample["image"].float().cpu(), sample["text"].float().cpu()
            self.results.append((*pair, sample["caption"], sample.get("name")))

    def compute_metrics(self, results: list[tuple[Tensor, Tensor, str, str | None]]) -> Metrics:
        names = [f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in self.topk]
        if not results:
            return dict.fromkeys(names, math.nan)
        rows: dict[int | str, int] = {}  # each image and each caption counts once
        columns: dict[str, int] = {}
        images: list[Tensor] = []
        texts: list[Tensor] = []
        pairs = []
        for number, (image, text, caption, name) in enumerate(results):
            row = rows.setdefault(number if name is None else name, len(images))
            column = columns.setdefault(caption, len(texts))
            pairs.append((row, column))
            images += [image] * (row == len(images))
            texts += [text] * (column == len(texts))
        points = torch.stack(images)
        captions = torch.stack(texts)
        found = self._recalls(points, captions, torch.tensor(pairs), "image")
        found += self._recalls(captions, points, torch.tensor(pairs).flip(1), "text")
        return dict(zip(names, found))

    def _recalls(
        self, query: Tensor, gallery: Tensor, pairs: Tensor, modality: Modality
    ) -> list[float]:
        """Return the recalls in percent of queries of a modality; ``pairs``, int (N, 2), holds
        numbers of a query and of a row of the gallery that belongs to it."""
        right = pairs[:, 0] * len(gallery) + pairs[:, 1]
        most = min(max(self.topk), len(gallery))
        columns = gallery.double()
        codes = []
        for rows in torch.arange(len(query)).split(512):
            scores = self.space.ranking(query[rows].double(), columns, modality)
            codes.append(rows[:, None] * len(gallery) + scores.topk(most).indices)
        hit = torch.isin(torch.cat(codes), right)
        return [100.0 * float(hit[:, :k].any(1).double().mean()) for k in self.topk]
