"""Retrieval metrics of embeddings: Recall@K, R-precision, mAP@R, and the height of mistakes in a
hierarchy.

Neighbours come from blocks of a matrix product that are merged one by one, so the memory depends on
the block sizes, not on the number of images: 60,502 queries against as many images in 512
dimensions take at most 2 GB, embeddings included.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.engine.extensions import PREDICTION_ARGUMENTS
from hypvision.engine.metrics import Metric, tell_missing
from hypvision.io import HypvisionError, Metrics, Plain, one_of, require, require_finite
from hypvision.io.files import check_output, replacing, with_ending

SPACES = ("lorentz", "cosine", "euclidean")


# Number of queries at a time. faiss is several times slower with fewer than some thousand queries,
# but its results must fit into memory, too.
_BLOCK = 512
_FAISS_BLOCK = 8192
_FAISS_FOUND = 2**22


class _Products:
    """Rows in float64 for queries and for the gallery, whose product is the larger the nearer two
    points are, up to a number for each query.

    float32 loses neighbours that are much nearer to each other than to the origin. So the gallery's
    rows are differences from a point amid the gallery, which on a hyperboloid a reflection has
    moved to the origin; then they keep their digits in float32, too, which faiss needs.
    """

    def __init__(self, gallery: Tensor, space: str, block: int):
        self.space = space
        self.mirror = None
        parts = [gallery[start : start + block] for start in range(0, len(gallery), block)]
        self.square = _squared_radius(parts) if space == "lorentz" else 0.0
        mean = gallery.new_zeros(1, gallery.shape[1], dtype=torch.float64)
        for part in parts:
            mean += self._placed(part).sum(0) / len(gallery)
        if space == "lorentz":
            inner = float(2 * mean[0, 0].square() - mean.square().sum())
            mean = mean * (self.square / inner) ** 0.5 if inner > 0 else 0 * mean  # centroid
            normal = self._placed(mean)
            normal[:, 0] -= self.square**0.5
            length = float(normal.square().sum() - 2 * normal[0, 0].square())
            if length > 0:
                self.mirror = normal, _minkowski(normal) * (2 / length)
        self.centre = self._placed(mean)

    def _placed(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.space == "cosine":
            return torch.nn.functional.normalize(x)
        if self.space == "lorentz":  # recompute the time, which has lost digits for far points
            time = (self.square + x[:, 1:].square().sum(1, keepdim=True)).sqrt()
            x = torch.cat([time, x[:, 1:]], 1)
            if self.mirror is not None:
                normal, dual = self.mirror
                x = x - (x @ dual.T) * normal
        return x

    def queries(self, x: Tensor) -> Tensor:
        """Return the rows of queries ``(B, d)``."""
        x = self._placed(x)
        # The product is monotone in the distance, the arcosh of minus the Minkowski product.
        if self.space == "lorentz":
            return _minkowski(x)
        if self.space == "euclidean":  # |x - y|^2 = |x|^2 - 2 x.y + |y|^2
            return torch.cat([2 * (x - self.centre), -x.new_ones(len(x), 1)], 1)
        return x

    def columns(self, x: Tensor) -> Tensor:
        """Return the rows of images of the gallery ``(B, d)``."""
        x = self._placed(x) - self.centre
        return torch.cat([x, (x * x).sum(1, keepdim=True)], 1) if self.space == "euclidean" else x


def _squared_radius(parts: Sequence[Tensor]) -> float:
    """Return ``1 / c``, estimated from points with time first. Points count the less the further
    they are, because the round-off of their squares is larger."""
    found = weights = 0.0
    for part in parts:
        square = part.double().square()
        weight = square[:, :1].clamp(min=1e-9) ** -2
        weights += float(weight.sum())
        found += float(((2 * square[:, :1] - square.sum(1, keepdim=True)) * weight).sum())
    return found / weights if found > 0 else 1.0


def _minkowski(x: Tensor) -> Tensor:
    return torch.cat([-x[:, :1], x[:, 1:]], 1)


def nearest(
    query: Tensor,
    gallery: Tensor,
    k: int | Tensor,
    space: str = "lorentz",
    exclude: Tensor | None = None,
    query_block: int | None = None,
    gallery_block: int = 16384,
    backend: str = "torch",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the ``k`` nearest images of the gallery, for one block of queries after the other.

    Args:
        query, gallery: ``(Q, d)`` and ``(G, d)``, on the same device.
        k: number of neighbours; or for each query the least number ``(Q,)``: queries that need few
            come first, and a block gets the largest number in it. Fewer if the gallery is smaller.
        space: ``"lorentz"`` (points with time first), ``"cosine"`` or ``"euclidean"``.
        exclude: ``(Q,)``, for each query the number of an image that does not count, such as
            itself, or -1.
        query_block, gallery_block: sizes of a block; by default 512 queries, for faiss up to 8192.
        backend: ``"torch"``, in float64, or ``"faiss"`` for its exact index, in float32 (on the
            CPU).

    Yields:
        The numbers of a block's queries ``(block,)``, and ``(block, k)`` numbers of images, the
        nearest first; equally near images come in any order.
    """
    one_of(SPACES, space=space)
    one_of(("torch", "faiss"), backend=backend)
    _check_points(query, gallery)
    counts = (
        torch.as_tensor(k).cpu().expand(len(query)).clamp(max=len(gallery) - (exclude is not None))
    )
    order = torch.arange(len(query)) if isinstance(k, int) else counts.argsort(stable=True)
    products = _Products(gallery, space, gallery_block)
    search = (_with_faiss if backend == "faiss" else _with_torch)(products, gallery, gallery_block)
    while len(order):
        size = query_block or (_FAISS_BLOCK if backend == "faiss" else _BLOCK)
        while (
            query_block is None
            and size > _BLOCK
            and size * int(counts[order[:size]].max()) > _FAISS_FOUND
        ):
            size //= 2
        own = order[:size]
        order = order[size:]
        chosen = own.to(query.device)
        mine = None if exclude is None else exclude[chosen]
        best, numbers = search(products.queries(query[chosen]), mine, int(counts[own].max()))
        require_finite(best, partial(_of_query, own))
        yield chosen, numbers


def _of_query(queries: Tensor, row: int) -> str:
    return f"A product of the embedding of query {queries[row]}"


def _check_points(query: Tensor, gallery: Tensor) -> None:
    require_finite(query, lambda row: f"The embedding of query {row}")
    if gallery is not query:
        require_finite(gallery, lambda row: f"The embedding of image {row} of the gallery")


# From rows, exclude and k to the products of the nearest images and their numbers.
_Search = Callable[[Tensor, Tensor | None, int], tuple[Tensor, Tensor]]


def _with_torch(products: _Products, gallery: Tensor, gallery_block: int) -> _Search:
    def search(rows: Tensor, mine: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        best = rows[:, :0]
        numbers = rows[:, :0].long()
        for first in range(0, len(gallery), gallery_block):
            columns = products.columns(gallery[first : first + gallery_block])
            scores = rows @ columns.T
            if mine is not None:
                inside = (mine >= first) & (mine < first + len(columns))
                scores[inside.nonzero()[:, 0], mine[inside] - first] = -torch.inf
            values, indices = scores.topk(min(k, scores.shape[1]), dim=1)
            # Merge with the nearest so far, so that the memory does not grow with the gallery.
            indices = torch.cat([numbers, indices + first], 1)
            values = torch.cat([best, values], 1)
            best, order = values.topk(min(k, values.shape[1]), dim=1)
            numbers = indices.gather(1, order)
        return best, numbers

    return search


def _with_faiss(products: _Products, gallery: Tensor, gallery_block: int) -> _Search:
    def array(rows: Tensor) -> np.ndarray:
        return rows.float().cpu().numpy()

    index: Any = None
    for part in gallery.split(gallery_block):
        columns = array(products.columns(part))
        index = index or require("faiss", "faiss").IndexFlatIP(columns.shape[1])
        index.add(columns)

    def search(rows: Tensor, mine: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        found = index.search(array(rows), k + (mine is not None))
        best, numbers = (torch.from_numpy(part).to(rows.device) for part in found)
        if mine is not None:  # a stable sort moves the query itself to the end
            order = (numbers == mine[:, None]).int().argsort(dim=1, stable=True)[:, :k]
            best = best.gather(1, order)
            numbers = numbers.gather(1, order)
        return best, numbers

    return search


def lca_heights(ancestors: Sequence[Sequence[str]]) -> Tensor:
    """Return the height of the lowest common ancestor of every two classes, int16 ``(C, C)``.

    ``ancestors`` are the groups above each class, from general to specific, equally many for all.
    The height is 0 for a class and itself; with one level of groups it is 1 within a group and 2
    between groups. For only some pairs of many classes use :class:`GroupTree`."""
    tree = GroupTree(ancestors)
    rows = torch.arange(len(ancestors))
    heights = torch.empty(len(rows), len(rows), dtype=torch.int16)
    for row in rows:
        heights[row] = tree.heights(row, rows)
    return heights


class GroupTree:
    """Classes as the leaves of a tree, built from the groups above each, see
    :func:`lca_heights`."""

    def __init__(self, ancestors: Sequence[Sequence[str]]):
        levels = [list(range(len(ancestors)))]
        for level in range(1, 1 + len(ancestors[0]) if ancestors else 0):
            numbers: dict[tuple[str, ...], int] = {}
            levels.append(
                [numbers.setdefault(tuple(above[:level]), len(numbers)) for above in ancestors]
            )
        self.levels = [torch.tensor(numbers) for numbers in levels]

    def heights(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the heights, int64, of the lowest common ancestors of pairs of classes."""
        levels = [level.to(one.device) for level in self.levels]
        return torch.stack([level[one] != level[other] for level in levels]).sum(0)


def evaluate_retrieval(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    recall: Sequence[int] = (1, 2, 4, 8),
    space: str = "lorentz",
    ancestors: Sequence[Sequence[str]] | None = None,
    **blocks: Any,
) -> Metrics:
    """Return retrieval metrics: percentages, and heights in a tree of classes.

    - ``recall@K``: share of queries with an image of their class among the K nearest.
    - ``r_precision``: share of the R nearest images that have the query's class, where R is the
      number of images of this class; ``map@r``: the mean of the precisions at the right ones among
      them (Musgrave et al., ECCV 2020). Queries whose class has no other image do not count.
    - ``mistake_height``: over the queries whose nearest image is wrong, the mean height of the
      lowest common ancestor of the two classes, 0 if no query is wrong; ``height@1``: the mean over
      all queries, where a right one counts as 0 (Bertinetto et al., CVPR 2020).

    If no query has another image of its class, all metrics are NaN, with a warning.

    Args:
        query: embeddings ``(Q, d)``; ``query_labels``: their classes ``(Q,)``.
        gallery, gallery_labels: the same for the images to search; None: the queries search among
            each other, each without itself.
        recall: values of K; those above the size of the gallery are left out.
        ancestors: see :func:`lca_heights`; None, or no groups, leaves out the heights.
        space, blocks: see :func:`nearest`.
    """
    queries = (query, query_labels)
    among = gallery is None or gallery_labels is None
    images: Any = queries if among else (gallery, gallery_labels)
    metrics, without_truth = _measure(queries, images, recall, space, ancestors or (), blocks)
    tell_missing("evaluate_retrieval", metrics, without_truth)
    return metrics


Labelled = tuple[Tensor, Tensor]  # embeddings (N, d) and their labels (N,)


@torch.no_grad()
def _measure(
    queries: Labelled, images: Labelled, recall: Sequence[int], space: str,
    ancestors: Sequence[Sequence[str]], blocks: Plain,
) -> tuple[Metrics, list[str]]:  # fmt: skip
    """Return the metrics of :func:`evaluate_retrieval`, among the queries themselves if ``images``
    is ``queries``, and a text in a list if some queries have no other image of their class."""
    query, query_labels = queries
    gallery, gallery_labels = images
    among = images is queries
    _check_points(query, gallery)
    tree = GroupTree(ancestors) if any(ancestors) else None
    others = _others(query_labels, gallery_labels) - int(among)
    able = int((others > 0).sum())
    recall = [k for k in recall if not able or k <= len(gallery) - among]
    divisors = dict.fromkeys(map("recall@{}".format, recall), len(query) / 100)
    divisors |= {"r_precision": able / 100, "map@r": able / 100}
    if tree is not None:
        divisors |= {"height@1": len(query), "mistake_height": 0}
    if not able:
        return dict.fromkeys(divisors, math.nan), []
    exclude = torch.arange(len(query), device=query.device) if among else None
    depth = others.clamp(min=max([1, *recall]))
    sums: Counter[str] = Counter()
    for chosen, numbers in nearest(query, gallery, depth, space, exclude, **blocks):
        found = gallery_labels[numbers]
        sums.update(_sums(query_labels[chosen], found, others[chosen], recall, tree))
    sums["mistake_height"] = sums["height@1"]
    metrics = {
        name: sums[name] / (part or max(sums["wrong"], 1)) for name, part in divisors.items()
    }
    alone = f"{len(query) - able} of {len(query)} queries (misses in recall, not counted elsewhere)"
    return metrics, [alone] * (able < len(query))


def _others(query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """Return, for each query, the number of images of its class in the gallery, ``(Q,)``."""
    labels = torch.cat([query_labels, gallery_labels])
    classes = int(labels.max()) + 1 if len(labels) else 0
    return torch.bincount(gallery_labels, minlength=classes)[query_labels]


def _sums(
    labels: Tensor, found: Tensor, others: Tensor, recall: Sequence[int], tree: GroupTree | None
) -> Metrics:
    """Return sums over queries: hits, precisions, and with a ``tree`` heights and mistakes.

    ``labels`` ``(B,)`` are the queries' classes, ``found`` ``(B, k)`` the classes of their nearest
    images, and ``others`` ``(B,)`` the numbers of images of their class in the gallery."""
    hits = found == labels[:, None]
    sums = {f"recall@{k}": hits[:, :k].any(1).sum().item() for k in recall}
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    counted = (hits & (ranks <= others[:, None])).double()
    share = others.clamp(min=1)
    sums["r_precision"] = (counted.sum(1) / share).sum().item()
    sums["map@r"] = ((counted.cumsum(1) / ranks * counted).sum(1) / share).sum().item()
    if tree is not None:
        sums["height@1"] = tree.heights(labels, found[:, 0]).sum().item()
        sums["wrong"] = (~hits[:, 0]).sum().item()
    return sums


@METRICS.register_module()
class RetrievalMetric(Metric):
    """:func:`evaluate_retrieval` of the embeddings that a metric learner predicts. The data set's
    ``metainfo`` says which images are queries and which gallery, and holds the hierarchy of
    classes, see :mod:`hypvision.data.retrieval`.

    Args:
        recall: values of K.
        encoder: measure the backbone's features, by their cosines, too: ``encoder_recall@K``, ...
        backend: ``"torch"`` or ``"faiss"``.
        device: device of the comparison; by default the GPU, if there is one.
        out_file: path of a file for the embeddings, labels and metrics; ``.npz`` is added to a name
            without this ending.
    """

    def __init__(
        self,
        recall: Sequence[int] = (1, 2, 4, 8),
        encoder: bool = False,
        backend: str = "torch",
        device: str | None = None,
        out_file: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.recall = tuple(recall)
        self.backend = backend
        self.out_file = check_output(with_ending(out_file, ".npz")) if out_file else None
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def process(self, data_batch: Any, data_samples: list[Plain]) -> None:
        points = torch.stack([sample["embedding"] for sample in data_samples])
        if self.check(points, "The embedding", data_samples):
            for sample, point in zip(data_samples, points.numpy()):
                features = sample["features"].numpy() if self.encoder else None
                self.results.append(
                    (sample["index"], sample["label"], point, sample["space"], features)
                )

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        meta = self.dataset_meta or {}
        results.sort(key=lambda result: result[0])
        points, labels = self._embedded(results, 2)
        space = results[0][3] if results else SPACES[0]
        queries = self._queries(results)
        metrics, self.without_truth = self._compared(points, labels, queries, space)
        if self.encoder:
            features = self._embedded(results, 4)
            found, _ = self._compared(*features, queries, "cosine")
            metrics |= {f"encoder_{name}": value for name, value in found.items()}
        if self.out_file is not None:
            with replacing(self.out_file) as temporary:
                np.savez(
                    temporary, embeddings=points.cpu().numpy(), labels=labels.cpu().numpy(),
                    space=space, classes=np.array(meta.get("classes") or ()),
                    metrics=json.dumps(metrics),
                )  # fmt: skip
        return metrics

    def _queries(self, results: list[tuple]) -> int | None:
        """Return how many of the images that the loader has given are queries; None: all."""
        queries = (self.dataset_meta or {}).get("queries")
        if queries is None:
            return None
        found = sum(index < queries for index, *_ in results)
        if results and not 0 < found < len(results):
            raise HypvisionError(
                f"The data has {len(results)} images, {found} of which are queries: both "
                "queries and a gallery are needed. Correct the data set."
            )
        return found

    def _compared(
        self, points: Tensor, labels: Tensor, queries: int | None, space: str
    ) -> tuple[Metrics, list[str]]:
        """Return what :func:`_measure` does, for the first ``queries`` points (None: all)."""
        own = gallery = (points, labels)
        if queries is not None:
            own = (points[:queries], labels[:queries])
            gallery = (points[queries:], labels[queries:])
        ancestors = (self.dataset_meta or {}).get("ancestors") or ()
        return _measure(own, gallery, self.recall, space, ancestors, {"backend": self.backend})

    def _embedded(self, results: list[tuple], place: int) -> Labelled:
        """Return the vectors at a place of the results, and their labels."""
        points = torch.zeros(0, 1)
        if results:
            points = torch.from_numpy(np.stack([result[place] for result in results]))
        labels = torch.tensor([result[1] for result in results], dtype=torch.int64)
        return points.to(self.device), labels.to(self.device)


PREDICTION_ARGUMENTS["RetrievalMetric"] = "out_file"
