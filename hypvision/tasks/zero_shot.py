"""Zero-shot evaluation of a CLIP on the data sets of a suite: classes, a tree of classes, retrieval
and the choice between two captions. The command is ``hypvision clip evaluate``.

Each data set has a result file in the form of CLIP_benchmark; its entry ``hypvision`` says what
else the numbers depend on. A data set whose file exists, for the same weights, prompts, class names
and data, is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from hypvision.clip.features import fingerprint
from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.measure import embed_readable
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.spaces import Space, Sphere
from hypvision.data.preprocessing import preprocessing_of
from hypvision.data.zero_shot import (
    PUBLISHED,
    Benchmark,
    Captions,
    Choice,
    Labelled,
    imagenet_tree,
    published,
)
from hypvision.io import Metrics, Plain, Values, ensure
from hypvision.io.files import write_json
from hypvision.io.images import open_image
from hypvision.io.records import read_record

from .classification_metrics import ScoreMetric
from .contrastive_metrics import (
    HierarchicalErrors,
    ImageTextRetrieval,
    ZeroShotAccuracy,
    cone_metrics,
)

_RECALLS = [f"{way}_retrieval_recall@{k}" for way in ("text", "image") for k in (5, 10)]
SHOWN = {
    "classification": ["macro"],
    "tree": list(HierarchicalErrors.NAMES),
    "retrieval": _RECALLS,
    "pairs": ["acc", "cone_auc", "cone_ap"],
}
"""The metrics of each task that the table shows, by their names in the result files."""

_TASKS = {
    "classification": "zeroshot_classification",
    "tree": "zeroshot_classification",
    "retrieval": "zeroshot_retrieval",
    "pairs": "image_caption_selection",
}


class Result(NamedTuple):
    """A result file in the form of CLIP_benchmark, with shares from 0 to 1. ``hypvision`` holds how
    images are resized, a hash of the weights, the place of the data, the prompts, a hash of the
    class names in the prompts, the number of images (or of choices) and a note."""

    dataset: str
    model: str
    pretrained: str
    task: str
    metrics: Metrics
    language: str
    hypvision: Plain


class Evaluator:
    """Measures a CLIP on data sets of a suite.

    Args:
        clip: the model.
        options: ``name`` and ``pretrained`` with which the model was created, for the result files.
        suite: one of :data:`hypvision.data.zero_shot.PUBLISHED`.
        root: folder of all data sets.
        out: folder of the result files.
    """

    def __init__(self, clip: CLIPBundle, options: Values, suite: str, root: Path, out: Path):
        self.clip = clip
        self.model = str(options["name"])
        self.pretrained = str(options.get("pretrained") or "")
        self.suite = suite
        self.resize = "model" if suite == "open_clip" else "squash"
        self.root = root
        self.out = out
        view = preprocessing_of(clip.model)
        towers = [
            fingerprint(clip.model, images, view, clip.mean, clip.std).hexdigest()
            for images in (True, False)
        ]
        self.weights = "-".join(tower[:16] for tower in towers)
        self._read: dict[Any, Labelled] = {}
        self._last: dict[Any, tuple[Labelled, Tensor]] = {}

    def __call__(self, benchmark: Benchmark) -> tuple[Result, bool]:
        """Return the result of a data set, and whether its file existed already."""
        templates: list[str] = []
        names: list[str] = []
        note = ""
        if benchmark.task in ("classification", "tree"):
            templates, note = benchmark.sentences(self.suite, self.root)
            names = self.labelled(benchmark).names
        about: Plain = dict(
            resize=self.resize if benchmark.task in ("retrieval", "pairs") else "model",
            weights=self.weights,
            data=str((self.root / benchmark.place).absolute()),
            prompts=templates,
            classes=hashlib.sha256(json.dumps([names, templates]).encode()).hexdigest()[:16],
        )
        task = _TASKS[benchmark.task]
        parts = [benchmark.benchmark, Path(self.pretrained).name, self.model, "en", task]
        name = "_".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)
        path = self.out / f"{name}.json"
        if path.is_file():
            kept = read_record(Result, path, "Remove it, and the set is measured again.")
            if {key: kept.hypvision.get(key) for key in about} == about:
                return kept, True
        metrics, count, more = _MEASURES[benchmark.task](self, benchmark, templates)
        about["images"] = count
        about["note"] = "; ".join(filter(None, [note, more, benchmark.note]))
        found = Result(benchmark.benchmark, self.model, self.pretrained, task, metrics, "en", about)
        write_json(path, found._asdict())
        return found, False

    def labelled(self, benchmark: Benchmark) -> Labelled:
        """Return labelled images and class names; the last ones are kept."""
        key = (benchmark.reader, benchmark.also or benchmark.place)
        if key not in self._read:
            self._read = {key: benchmark.read(self.root)}
        return self._read[key]

    def classified(self, benchmark: Benchmark, templates: Sequence[str]) -> tuple[Labelled, Tensor]:
        """Return labelled images, and their similarities to all classes ``(N, C)``; the last result
        is kept, because the tree of the same classes uses it again."""
        key = (benchmark.reader, benchmark.also or benchmark.place, tuple(templates))
        if key not in self._last:
            data = self.labelled(benchmark)
            images = self.embed([item.path for item in data.items])
            with torch.no_grad():
                points = self.clip.embed_classes(data.names, templates)
            self._last = {key: (data, self.clip.similarity(images, points).cpu())}
        return self._last[key]

    def embed(self, paths: Sequence[str], squash: bool = False) -> Tensor:
        """Return points of images. With ``squash`` images are resized to the model's shape without
        cropping, as the suites of MERU's successors do for data with captions."""
        ensure(
            paths,
            "The data set has no test images. Take an intact copy of the data set.",
        )
        height, width = preprocessing_of(self.clip.model).size

        def read(path: str) -> Image.Image:
            image = open_image(path)
            if squash and self.resize == "squash":
                image = image.resize((width, height), Image.Resampling.BICUBIC)
            return image

        return embed_readable(self.clip, paths, None, read=read)[1]

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return points of texts."""
        return embed_texts(self.clip.model, self.clip.tokenizer, texts)


# Functions that measure a task: they return metrics, the number of images and a note

_Measured = tuple[Metrics, int, str]


def _values(metric: ScoreMetric, data: Labelled, scores: Tensor) -> Metrics:
    samples = [
        dict(scores=row, label=item.label, img_path=item.path)
        for row, item in zip(scores, data.items)
    ]
    metric.process(None, samples)
    return metric.compute_metrics(metric.results)


def _classification(
    evaluator: Evaluator, benchmark: Benchmark, templates: Sequence[str]
) -> _Measured:
    data, scores = evaluator.classified(benchmark, templates)
    accuracy = ZeroShotAccuracy(topk=(1, 5))
    values = _values(accuracy, data, scores)
    metrics = {f"acc{k}": values[f"top{k}"] / 100 for k in (1, 5) if f"top{k}" in values}
    metrics["mean_per_class_recall"] = fmean(one.value for one in accuracy.classes) / 100
    metrics["macro"] = values["macro"] / 100
    count = len(data.names)
    note = "" if count == benchmark.classes else f"{count} classes, not {benchmark.classes}"
    return metrics, len(data.items), note


def _tree(evaluator: Evaluator, benchmark: Benchmark, templates: Sequence[str]) -> _Measured:
    data, scores = evaluator.classified(benchmark, templates)
    folders = {item.label: Path(item.path).parent.name for item in data.items}
    classes = [folders[label] for label in sorted(folders)]
    above = imagenet_tree(evaluator.root / benchmark.place)
    errors = HierarchicalErrors({name: above[name] for name in classes if name in above})
    errors.dataset_meta = dict(classes=classes)
    return _values(errors, data, scores), len(data.items), ""


def _retrieval(evaluator: Evaluator, benchmark: Benchmark, _: Sequence[str]) -> _Measured:
    rows: list[Captions] = benchmark.read(evaluator.root)
    images = evaluator.embed([row.image for row in rows], squash=True)
    owners = [number for number, row in enumerate(rows) for _ in row.texts]
    texts = evaluator.texts([text for row in rows for text in row.texts])
    space = evaluator.clip.space
    # Each caption is identified by its number: two images may have the same words, but each image
    # has its own captions.
    samples = [
        dict(image=images[owner], text=text, caption=str(number), name=str(owner), space=space)
        for number, (owner, text) in enumerate(zip(owners, texts))
    ]
    metric = ImageTextRetrieval(topk=(1, 5, 10))
    metric.process(None, samples)
    values = metric.compute_metrics(metric.results)
    ways = {"text": "image_to_text", "image": "text_to_image"}
    metrics = {
        f"{what}_retrieval_recall@{k}": values[f"{way}_r{k}"] / 100
        for what, way in ways.items()
        for k in metric.topk
    }
    return metrics, len(rows), ""


def _pairs(evaluator: Evaluator, benchmark: Benchmark, _: Sequence[str]) -> _Measured:
    rows: list[Choice] = benchmark.read(evaluator.root)
    paths = list(dict.fromkeys(row.image for row in rows))
    place = {path: number for number, path in enumerate(paths)}
    images = evaluator.embed(paths, squash=True)[[place[row.image] for row in rows]]
    space = evaluator.clip.space
    texts = [evaluator.texts([row[part] for row in rows]) for part in (1, 2)]
    right, wrong = (_scores(space, images, points) for points in texts)
    share = float((right > wrong).double().mean())
    # CLIP_benchmark's names; with one image for both texts the choice of an image is always right.
    metrics = {"image_acc": 1.0, "text_acc": share, "acc": share}
    if not isinstance(space, Sphere):
        true = torch.arange(2 * len(rows)) < len(rows)
        metrics |= cone_metrics(space, torch.cat(texts), images.repeat(2, 1), true)
    return metrics, len(rows), ""


def _scores(space: Space, images: Tensor, texts: Tensor) -> Tensor:
    """Return the scores ``(N,)`` of images for one text each, in float64."""
    parts = zip(images.cpu().double().split(256), texts.cpu().double().split(256))
    return torch.cat([space.scores(x, y).diagonal() for x, y in parts])


_MEASURES: dict[str, Callable[[Evaluator, Benchmark, Sequence[str]], _Measured]] = {
    "classification": _classification,
    "tree": _tree,
    "retrieval": _retrieval,
    "pairs": _pairs,
}


# The table of results


def table(suite: str, results: Mapping[str, tuple[Benchmark, Result]]) -> list[dict[str, str]]:
    """Return a row for each data set and reported metric: the measured number, the published
    numbers of other models, and notes. ``results`` are named by data set. Shares are in percent,
    except those of a tree."""
    reported = published()
    rows = []
    for name, (benchmark, result) in results.items():
        shown = SHOWN[benchmark.task]
        if suite == "open_clip" and benchmark.task == "classification":
            shown = ["acc1"]
        for number, metric in enumerate(name for name in shown if name in result.metrics):
            of_papers = reported.get((name, metric), {})
            row = {"set": name, "metric": metric}
            row["measured"] = _text(benchmark.task, result.metrics[metric])
            row |= {model: of_papers.get(model, "") for model in PUBLISHED[suite]}
            row["note"] = "" if number else str(result.hypvision["note"])
            rows.append(row)
    return rows + _overall(suite, results)


def _text(task: str, value: float) -> str:
    return f"{value:.2f}" if task == "tree" else f"{100 * value:.1f}"


def _overall(suite: str, results: Mapping[str, tuple[Benchmark, Result]]) -> list[dict[str, str]]:
    """Return a row with the share of all items of SugarCrepe, once all its files are measured."""
    parts = [found for name, (_, found) in results.items() if name.startswith("sugar_crepe/")]
    if len(parts) < 7:
        return []
    count = sum(part.hypvision["images"] for part in parts)
    right = sum(part.hypvision["images"] * part.metrics["acc"] for part in parts)
    row = {"set": "sugar_crepe", "metric": "acc", "measured": _text("pairs", right / count)}
    return [row | dict.fromkeys(PUBLISHED[suite], "") | {"note": "all items"}]
