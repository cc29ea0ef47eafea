"""How well a CLIP names images and finds pairs, and how far off its mistakes are in a tree of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.engine.metrics import Metric
from hypvision.errors import HypvisionError
from hypvision.files import read_json


@METRICS.register_module()
class ZeroShotAccuracy(Metric):
    """Share of single objects, in percent, whose class is the most similar one (``top1``) or among the ``k`` most
    similar; NaN without images.

    Args:
        topk: which shares to give.
        **kwargs: see :class:`mmengine.evaluator.BaseMetric`.
    """

    default_prefix = ""

    def __init__(self, topk: Sequence[int] = (1,), **kwargs: Any):
        super().__init__(**kwargs)
        self.topk = tuple(topk)

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep whether each image was named rightly."""
        for sample in data_samples:
            if sample["label"] < 0:
                raise HypvisionError("ZeroShotAccuracy needs single objects: set scenes=False in its data set.")
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A similarity", data_samples):
            labels = torch.tensor([sample["label"] for sample in data_samples])
            best = scores.topk(min(max(self.topk), scores.shape[1])).indices == labels[:, None]
            self.results += [tuple(bool(row[:k].any()) for k in self.topk) for row in best]

    def compute_metrics(self, results: list[tuple[bool, ...]]) -> dict[str, float]:
        """The means."""
        share = torch.tensor(results).double().mean(0) if results else [math.nan] * len(self.topk)
        return {f"top{k}": 100.0 * float(value) for k, value in zip(self.topk, share)}


@METRICS.register_module()
class HierarchicalErrors(Metric):
    """The errors of HyCoCLIP's evaluation (Pal et al., ICLR 2025) in a tree of classes; means over the images.

    With ``A_p`` and ``A_t`` the ancestors of the predicted and of the true class, each with the class itself:
    ``tie``, the tree-induced error, edges between the two; ``lca``, ``|A_p| - |A_p & A_t| + 1``; ``jaccard``,
    ``precision`` and ``recall`` of ``A_p`` for ``A_t``.

    Args:
        ancestors: the groups above each class, from general to specific, by the names of the classes; or a JSON file
            of it. Default: those of the data set.
        **kwargs: see :class:`mmengine.evaluator.BaseMetric`.
    """

    default_prefix = ""
    NAMES = ("tie", "lca", "jaccard", "precision", "recall")

    def __init__(self, ancestors: Mapping[str, Sequence[str]] | str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        found = read_json(ancestors) if isinstance(ancestors, str) else ancestors
        plain = isinstance(found, Mapping) and all(isinstance(row, (list, tuple)) for row in found.values())
        if found is not None and not plain:
            raise HypvisionError('"ancestors" of HierarchicalErrors is not {"CLASS": ["GROUP", ...]}.')
        self.ancestors = found

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep the predicted and the true class of each image."""
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A similarity", data_samples):
            self.results += zip(scores.argmax(1).tolist(), [sample["label"] for sample in data_samples])

    def compute_metrics(self, results: list[tuple[int, int]]) -> dict[str, float]:
        """The means."""
        if not results:
            return dict.fromkeys(self.NAMES, math.nan)
        meta = self.dataset_meta or {}
        names = meta["classes"]
        tree = dict(zip(names, meta.get("ancestors", ()))) if self.ancestors is None else self.ancestors
        if missing := [name for name in names if name not in tree]:
            raise HypvisionError(
                f"'ancestors' of HierarchicalErrors lacks {len(missing)} classes, e.g. '{missing[0]}'."
            )
        # A group is the path to it: two groups of one name under different groups are two.
        paths = [[*tree[name], name] for name in names]
        above = [{tuple(path[: i + 1]) for i in range(len(path))} for path in paths]
        rows = []
        for guess, truth in results:
            predicted, true = above[guess], above[truth]
            both = len(predicted & true)
            edges = len(predicted) + len(true) - 2 * both
            rows.append(
                (
                    edges,
                    len(predicted) - both + 1,
                    both / len(predicted | true),
                    both / len(predicted),
                    both / len(true),
                )
            )
        return dict(zip(self.NAMES, torch.tensor(rows, dtype=torch.float64).mean(0).tolist()))


@METRICS.register_module()
class ImageTextRetrieval(Metric):
    """Recall, in percent, of images by their caption (``text_to_image_r1``, ...) and of captions by their image.

    Any image with the same caption counts as found. NaN without pairs.

    Args:
        topk: the numbers of results that are looked at.
        **kwargs: see :class:`mmengine.evaluator.BaseMetric`.
    """

    default_prefix = ""

    def __init__(self, topk: Sequence[int] = (1, 5, 10), **kwargs: Any):
        super().__init__(**kwargs)
        self.topk = tuple(topk)

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep the points of each pair."""
        points = [torch.stack([sample[key] for sample in data_samples]) for key in ("image", "text")]
        if not all(self.check(x, f"The point of the {key}", data_samples) for x, key in zip(points, ("image", "text"))):
            return
        for sample in data_samples:
            self.space = sample["space"]
            self.results.append((sample["image"].float().cpu(), sample["text"].float().cpu(), sample["caption"]))

    def compute_metrics(self, results: list[tuple[Tensor, Tensor, str]]) -> dict[str, float]:
        """The recalls."""
        names = [f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in self.topk]
        if not results:
            return dict.fromkeys(names, math.nan)
        captions = [caption for *_, caption in results]
        number = {text: place for place, text in enumerate(dict.fromkeys(captions))}
        own = torch.tensor([number[text] for text in captions])
        first = torch.tensor([captions.index(text) for text in number])
        images, texts = torch.stack([row[0] for row in results]), torch.stack([row[1] for row in results])[first]
        scores = self.space.similarity(images, texts)
        found = []
        for ranked, truth in ((scores, own[:, None]), (scores.T, torch.arange(len(number))[:, None])):
            best = ranked.topk(min(max(self.topk), ranked.shape[1])).indices
            hit = (best if ranked is scores else own[best]) == truth
            found += [100.0 * float(hit[:, :k].any(1).double().mean()) for k in self.topk]
        return dict(zip(names, found))
