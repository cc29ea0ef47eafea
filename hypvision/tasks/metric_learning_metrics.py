"""Retrieval metrics of embeddings: Recall@K, R-precision, mAP@R, and the height of mistakes in a hierarchy.

Neighbours come from blocks of a matrix product, merged one by one: the memory depends on the block sizes and not on
the numbers of images: 60,502 queries against as many images in 512 dimensions take at most 2 GB, embeddings included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.checks import one_of
from hypvision.engine.extensions import PREDICTION_ARGUMENTS
from hypvision.engine.metrics import Metric, tell_missing
from hypvision.errors import HypvisionError, require, require_finite
from hypvision.files import check_output, replacing, with_ending

SPACES = ("lorentz", "cosine", "euclidean")


def _rows(x: Tensor, space: str) -> tuple[Tensor, Tensor]:
    """Rows for queries and for the gallery, whose product is larger for a nearer neighbour."""
    if space == "lorentz":  # monotone: the distance is arcosh of minus the Minkowski product, for any curvature
        query = x.clone()
        query[:, 0].neg_()
        return query, x
    if space == "cosine":
        x = torch.nn.functional.normalize(x)
        return x, x
    # |x - y|^2 = |x|^2 - 2 x.y + |y|^2
    square, one = (x * x).sum(1, keepdim=True), x.new_ones(len(x), 1)
    return torch.cat([2 * x, -one], 1), torch.cat([x, square], 1)


def nearest(
    query: Tensor,
    gallery: Tensor,
    k: int,
    space: str = "lorentz",
    exclude: Tensor | None = None,
    query_block: int = 512,
    gallery_block: int = 16384,
    backend: str = "torch",
) -> Iterator[tuple[slice, Tensor]]:
    """The ``k`` nearest images of the gallery, for blocks of queries.

    Args:
        query, gallery: ``(Q, d)`` and ``(G, d)``, on the same device.
        k: how many; fewer if the gallery is smaller.
        space: ``"lorentz"`` (points with time first), ``"cosine"`` or ``"euclidean"``.
        exclude: for each query the number of an image that does not count, itself, or -1: ``(Q,)``.
        query_block, gallery_block, backend: sizes of a block; ``"torch"``, or ``"faiss"`` for its exact index (on the
            CPU).

    Yields:
        The queries, and ``(block, k)`` numbers of images, nearest first; equal ones in any order.
    """
    one_of(SPACES, space=space)
    one_of(("torch", "faiss"), backend=backend)
    _check_points(query, gallery)
    k = min(k, len(gallery) - (exclude is not None))
    blocks = _with_faiss if backend == "faiss" else _with_torch
    yield from blocks(query, gallery, k, space, exclude, query_block, gallery_block)


def _check_points(query: Tensor, gallery: Tensor) -> None:
    require_finite(query, lambda row: f"The embedding of query {row}")
    if gallery is not query:
        require_finite(gallery, lambda row: f"The embedding of image {row} of the gallery")


def _with_torch(query, gallery, k, space, exclude, query_block, gallery_block):
    for start in range(0, len(query), query_block):
        chosen = slice(start, min(start + query_block, len(query)))
        rows, _ = _rows(query[chosen], space)
        mine = None if exclude is None else exclude[chosen]
        best = numbers = None
        for first in range(0, len(gallery), gallery_block):
            _, columns = _rows(gallery[first : first + gallery_block], space)
            scores = rows @ columns.T
            if mine is not None:
                inside = (mine >= first) & (mine < first + len(columns))
                scores[inside.nonzero()[:, 0], mine[inside] - first] = -torch.inf
            values, indices = scores.topk(min(k, scores.shape[1]), dim=1)
            indices += first
            if best is not None:  # merged with the nearest so far, so that the memory does not grow with the gallery
                indices, values = torch.cat([numbers, indices], 1), torch.cat([best, values], 1)
                values, order = values.topk(min(k, values.shape[1]), dim=1)
                indices = indices.gather(1, order)
            best, numbers = values, indices
        if best is not None:
            require_finite(best, lambda row, start=start: f"A product of the embedding of query {start + row}")
        yield chosen, numbers


def _with_faiss(query, gallery, k, space, exclude, query_block, gallery_block):
    faiss = require("faiss", "faiss")
    _, columns = _rows(gallery, space)
    index = faiss.IndexFlatIP(columns.shape[1])
    index.add(np.ascontiguousarray(columns.cpu().numpy(), dtype=np.float32))
    del columns
    for start in range(0, len(query), query_block):
        chosen = slice(start, min(start + query_block, len(query)))
        rows, _ = _rows(query[chosen], space)
        _, found = index.search(np.ascontiguousarray(rows.cpu().numpy(), dtype=np.float32), k + (exclude is not None))
        numbers = torch.from_numpy(found).to(query.device)
        if exclude is not None:  # a stable sort moves the query itself to the end
            order = (numbers == exclude[chosen, None]).int().argsort(1, stable=True)
            numbers = numbers.gather(1, order)[:, :k]
        yield chosen, numbers


def lca_heights(ancestors: Sequence[Sequence[str]]) -> Tensor:
    """Height of the lowest common ancestor of every two classes, int64 ``(C, C)``, by the groups above each, from
    general to specific, equally many: 0 for a class and itself, with one level of groups 1 within a group and 2
    between groups."""
    depth = len(ancestors[0]) if ancestors else 0
    height = torch.full((len(ancestors), len(ancestors)), depth + 1)
    for level in range(1, depth + 1):
        groups = {prefix: i for i, prefix in enumerate(dict.fromkeys(tuple(a[:level]) for a in ancestors))}
        number = torch.tensor([groups[tuple(a[:level])] for a in ancestors])
        height[number[:, None] == number[None]] = depth + 1 - level
    return height.fill_diagonal_(0)


def evaluate_retrieval(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    recall: Sequence[int] = (1, 2, 4, 8),
    space: str = "lorentz",
    ancestors: Sequence[Sequence[str]] | None = None,
    **blocks: Any,
) -> dict[str, float]:
    """Retrieval metrics, in percent but for heights.

    - ``recall@K``: share of queries with an image of their class among the K nearest.
    - ``r_precision``: share of the R nearest that are of the query's class, with R the number of images of that class;
      and ``map@r``: its mean over the hits' ranks (Musgrave et al., ECCV 2020). Queries whose class has no other image
      do not count.
    - ``mistake_height``: over the queries whose nearest image is wrong, the mean height of the lowest common ancestor
      of the two classes, 0 if none is; ``height@1``: over all queries, 0 for those that are right (Bertinetto et al.,
      CVPR 2020).

    If no query has another image of its class, all metrics are NaN, with a warning.

    Args:
        query, query_labels: ``(Q, d)``, ``(Q,)``.
        gallery, gallery_labels: likewise; None: the queries search among each other, each without itself.
        recall: values of K; those above the size of the gallery are left out.
        ancestors: see :func:`lca_heights`; None, or without groups, leaves out the heights.
        space, blocks: see :func:`nearest`.
    """
    images = None if gallery is None or gallery_labels is None else (gallery, gallery_labels)
    metrics, without_truth = _measure((query, query_labels), images, recall, space, ancestors, blocks)
    tell_missing("evaluate_retrieval", metrics, without_truth)
    return metrics


Labelled = tuple[Tensor, Tensor]  # embeddings and labels


@torch.no_grad()
def _measure(
    queries: Labelled, images: Labelled | None, recall: Sequence[int], space: str,
    ancestors: Sequence[Sequence[str]] | None, blocks: dict[str, Any],
) -> tuple[dict[str, float], list[str]]:  # fmt: skip
    """The result of :func:`evaluate_retrieval`, and the number of queries without another image of their class."""
    (query, query_labels), (gallery, gallery_labels) = queries, images or queries
    exclude = torch.arange(len(query), device=query.device) if images is None else None
    _check_points(query, gallery)
    height = lca_heights(ancestors).to(query.device) if ancestors and ancestors[0] else None
    classes = int(torch.cat([query_labels, gallery_labels]).max()) + 1 if len(query) + len(gallery) else 0
    others = torch.bincount(gallery_labels, minlength=classes)[query_labels] - int(exclude is not None)
    if not (able := int((others > 0).sum())):
        names = [*(f"recall@{k}" for k in recall), "r_precision", "map@r"]
        return dict.fromkeys(names + ["height@1", "mistake_height"] * (height is not None), math.nan), []
    recall = [k for k in recall if k <= len(gallery) - (exclude is not None)]
    depth = max([int(others.max()), 1, *recall])
    hits_at = dict.fromkeys(recall, 0.0)
    precision = average = tall = wrong = 0.0
    for chosen, numbers in nearest(query, gallery, depth, space, exclude, **blocks):
        labels, found = query_labels[chosen], gallery_labels[numbers]
        hits = found == labels[:, None]
        for k in recall:
            hits_at[k] += hits[:, :k].any(1).sum().item()
        r = others[chosen]
        ranks = torch.arange(1, hits.shape[1] + 1, device=query.device)
        counted = (hits & (ranks <= r[:, None])).float()
        share = r.clamp(min=1)
        precision += (counted.sum(1) / share).sum().item()
        average += ((counted.cumsum(1) / ranks * counted).sum(1) / share).sum().item()
        if height is not None:
            above = height[labels, found[:, 0]]
            tall, wrong = tall + above.sum().item(), wrong + (~hits[:, 0]).sum().item()
    metrics = {f"recall@{k}": 100 * count / len(query) for k, count in hits_at.items()}
    metrics |= {"r_precision": 100 * precision / able, "map@r": 100 * average / able}
    if height is not None:
        metrics |= {"height@1": tall / len(query), "mistake_height": tall / wrong if wrong else 0.0}
    alone = f"{len(query) - able} of {len(query)} queries (misses in recall, not counted elsewhere)"
    return metrics, [alone] if able < len(query) else []


@METRICS.register_module()
class RetrievalMetric(Metric):
    """:func:`evaluate_retrieval` of the embeddings that a metric learner predicts. Queries, gallery and the hierarchy
    of classes come from the data set's ``metainfo``, see :mod:`hypvision.data.retrieval`.

    Args:
        recall, backend: values of K; ``"torch"`` or ``"faiss"``.
        device: where to compare; the GPU by default, if there is one.
        out_file: write the embeddings, labels and metrics there; ``.npz`` is added to a name without it.
    """

    def __init__(
        self,
        recall: Sequence[int] = (1, 2, 4, 8),
        backend: str = "torch",
        device: str | None = None,
        out_file: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.recall, self.backend = tuple(recall), backend
        self.out_file = check_output(with_ending(out_file, ".npz")) if out_file else None
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        points = torch.stack([sample["embedding"] for sample in data_samples])
        if self.check(points, "The embedding", data_samples):
            for sample, point in zip(data_samples, points.numpy()):
                self.results.append((sample["index"], sample["label"], point, sample["space"]))

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        meta = self.dataset_meta or {}
        queries = meta.get("queries")
        results.sort(key=lambda result: result[0])
        if queries is not None:  # of those that the loader has given
            queries = sum(index < queries for index, *_ in results)
        points = torch.from_numpy(np.stack([result[2] for result in results])) if results else torch.zeros(0, 1)
        points = points.to(self.device)
        labels = torch.tensor([result[1] for result in results], dtype=torch.int64, device=self.device)
        space = results[0][3] if results else SPACES[0]
        if queries is not None and results and not 0 < queries < len(results):
            raise HypvisionError(f"The data has {len(results)} images, {queries} of them queries: no gallery is left.")
        gallery = None if queries is None else (points[queries:], labels[queries:])
        options = (self.recall, space, meta.get("ancestors"), {"backend": self.backend})
        metrics, self.without_truth = _measure((points[:queries], labels[:queries]), gallery, *options)
        if self.out_file is not None:
            with replacing(self.out_file) as temporary:
                np.savez(
                    temporary, embeddings=points.cpu().numpy(), labels=labels.cpu().numpy(), space=space,
                    classes=np.array(meta.get("classes") or ()), metrics=json.dumps(metrics),
                )  # fmt: skip
        return metrics


PREDICTION_ARGUMENTS["RetrievalMetric"] = "out_file"
