"""What time grows with: every kind of loss, metric, listing, sampler and step on the host at N, 2 N
and 4 N.

The exponent is that of N between the first and the last. Work on N items should be n log n at most,
about 1.1; losses that compare all pairs of a batch, and searches among all images, are n^2 by
nature and say so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.common import add_run_arguments, report, start

MARKS = ("<!-- growth:begin -->", "<!-- growth:end -->")
INTRODUCTION = """
## Growth

What takes how many times as long with more of it, on the host. The tests count
(`tests/contract/test_growth.py`). The losses that compare all pairs stop at a batch of 2,048,
because their tables grow with its square (16 MiB each there); the contrastive loss and the search
stop where their tables leave the caches of the processor, from where a doubling costs more than
four times.

<!-- growth:begin -->
<!-- growth:end -->
"""
CLASSES = 20  # where their number does not grow


class Case(NamedTuple):
    """What is measured: how to prepare it for N, what N counts, and the exponent that it may have
    at most."""

    make: Callable[[int, Path], Callable[[], object]]
    counts: str
    size: int
    limit: float = 1.5
    note: str = ""


def _names(n: int) -> list[str]:
    return [f"a photo of class {i}" for i in range(n)]


def _contrastive(n: int, _: Path) -> Callable[[], object]:
    from hypvision.tasks.contrastive import distinct

    captions = _names(n)
    return lambda: distinct(captions)


def _loss(kind: str) -> Callable[[int, Path], Callable[[], object]]:
    def make(n: int, _: Path) -> Callable[[], object]:
        from hypvision.geometry import Lorentz
        from hypvision.losses import (
            HIERLoss,
            ProxyAnchorLoss,
            ProxyNCALoss,
            SupConLoss,
            chain_triples,
            contrastive_loss,
        )

        x = torch.randn(n, 16, requires_grad=True)
        labels = torch.arange(n) // 2
        few = torch.randn(64, 16, requires_grad=True)
        own = torch.arange(64)
        space = Lorentz(1.0)
        losses: dict[str, Callable[[], Any]] = {
            "supcon": SupConLoss,
            "proxy anchor": lambda: ProxyAnchorLoss(n, 16),
            "proxy nca": lambda: ProxyNCALoss(n, 16),
            "hier": lambda: HIERLoss(space, 16),
        }
        loss = losses[kind]() if kind in losses else None
        if kind == "contrastive":
            return lambda: sum(contrastive_loss(x @ x.T)).backward()
        if kind == "chains":
            return lambda: chain_triples(4, n)
        if kind.startswith("proxy"):
            return lambda: loss(few, own).backward()
        return lambda: loss(space.from_tangent0(x) if kind == "hier" else x, labels).backward()

    return make


def _metric(
    name: str,
    sample: Callable[[int, int], dict],
    options: dict[str, Any] | None = None,
    grows: bool = False,
) -> Any:
    """A metric of N samples; with ``grows`` of as many classes, too."""

    def make(n: int, _: Path) -> Callable[[], object]:
        from mmengine.registry import METRICS

        import hypvision.tasks.contrastive
        import hypvision.tasks.metric_learning_metrics  # noqa: F401 - registers the metrics

        count = n if grows else CLASSES
        names = _names(count)
        groups = {name: (f"kind {i % 3}", f"group {i % 9}") for i, name in enumerate(names)}
        own = {
            key: groups if value == "groups" else value for key, value in (options or {}).items()
        }
        samples = [sample(i, count) for i in range(n)]

        def run() -> None:
            metric = METRICS.get(name)(**own)
            metric.dataset_meta = dict(classes=names, ancestors=list(groups.values()))
            metric.process(None, samples)
            metric.compute_metrics(metric.results)

        return run

    return make


def _scores(i: int, count: int) -> dict:
    scores = torch.zeros(CLASSES).index_fill(0, torch.tensor(i * 7 % CLASSES), 1.0)
    return dict(scores=scores, label=i % min(count, CLASSES), index=i)


def _several(i: int, count: int) -> dict:
    return dict(
        scores=torch.rand(CLASSES),
        label=[float(i % k == 0) for k in range(1, CLASSES + 1)],
        index=i,
    )


def _embedded(i: int, count: int) -> dict:
    return dict(embedding=torch.randn(16), space="cosine", label=i // 4 % count, index=i)


def _pair(i: int, count: int) -> dict:
    from hypvision.clip.spaces import Sphere

    return dict(
        image=torch.randn(16),
        text=torch.randn(16),
        caption=f"caption {i}",
        name=f"{i}",
        space=Sphere(),
    )


def _files(root: Path, n: int) -> list[str]:
    names = [f"{i}.png" for i in range(n)]
    for name in names:
        (root / name).touch()
    return names


def _folders(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.image_folder import ImageFolderDataset

    for k in range(CLASSES):
        (root / f"class {k}").mkdir()
        _files(root / f"class {k}", n // CLASSES)
    return lambda: ImageFolderDataset(str(root), dict(input_size=8))


def _classes(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.image_folder import ImageFolderDataset

    for k in range(n):
        (root / f"class {k}").mkdir()
        _files(root / f"class {k}", 1)
    return lambda: ImageFolderDataset(str(root), dict(input_size=8))


def _multi_label(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.multi_label import MultiLabelDataset

    (root / "table.csv").write_text(
        "image,labels\n" + "".join(f"{name},a;b\n" for name in _files(root, n))
    )
    return lambda: MultiLabelDataset(str(root), str(root / "table.csv"), dict(input_size=8))


def _products(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.retrieval import StanfordOnlineProducts

    (root / "chair_final").mkdir()
    names = _files(root / "chair_final", n)
    rows = "".join(f"{i} {i // 4 + 1} 1 chair_final/{name}\n" for i, name in enumerate(names))
    (root / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n" + rows)
    return lambda: StanfordOnlineProducts(str(root), dict(input_size=8))


def _captions(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.caption_folder import read_captions

    (root / "images").mkdir()
    rows = "".join(f"{name},a cat\n" for name in _files(root / "images", n))
    (root / "captions.csv").write_text("image,caption\n" + rows)
    return lambda: read_captions(root)


def _coco(api: str) -> Callable[[int, Path], Callable[[], object]]:
    def make(n: int, root: Path) -> Callable[[], object]:
        from pycocotools.coco import COCO

        from hypvision.openmmlab.datasets.detection import CheckedCOCO

        draw = np.random.default_rng(0)
        images = [
            dict(id=i, file_name=f"{i}.jpg", width=640, height=480) for i in range(n // 7 + 1)
        ]
        annotations = []
        for i in range(n):
            box = [*draw.uniform(0, 400, 2).tolist(), *draw.uniform(20, 80, 2).tolist()]
            outline = (np.array(box[:2] * 20) + draw.uniform(0, 20, 40)).tolist()
            own = dict(
                id=i + 1, image_id=i // 7, category_id=1 + i % 80, bbox=box, area=100.0, iscrowd=0
            )
            annotations.append(dict(own, segmentation=[outline]))
        categories = [dict(id=1 + k, name=f"c{k}") for k in range(80)]
        path = root / "coco.json"
        path.write_text(
            json.dumps(dict(images=images, annotations=annotations, categories=categories))
        )
        if api == "pycocotools":
            return lambda: COCO(str(path))
        return lambda: CheckedCOCO(str(path), masks=api == "masks")

    return make


def _sampler(kind: str) -> Callable[[int, Path], Callable[[], object]]:
    def make(n: int, _: Path) -> Callable[[], object]:
        from hypvision.data.samplers import BalancedSampler, MPerClassBatchSampler

        data = SimpleNamespace(labels=np.arange(n) // 4, metainfo={})
        if kind == "balanced":
            return lambda: list(BalancedSampler(data, length=n, seed=0))
        return lambda: list(
            MPerClassBatchSampler(SimpleNamespace(dataset=data, seed=0, epoch=0), 40, m=2)
        )

    return make


def _closure(n: int, _: Path) -> Callable[[], object]:
    from hypvision.data.closures import Closure
    from hypvision.geometry import Lorentz, ManifoldParameter
    from hypvision.optim import RiemannianSGD
    from hypvision.tasks.closures import fit_closure

    names = np.arange(1, n)
    closure = Closure(_names(n), np.stack([names, names // 2], 1))
    space = Lorentz(1.0)
    points = ManifoldParameter(space.from_tangent0(0.01 * torch.randn(n, 5)), space)
    optimizer = RiemannianSGD([points], lr=0.1)
    # many steps, so that what is done once does not count
    return lambda: fit_closure(closure, points, optimizer, space, steps=40, batch=64, negatives=20)


def _pairs_file(n: int, root: Path) -> Callable[[], object]:
    from hypvision.data.closures import read_closure

    (root / "tree.tsv").write_text("".join(f"n{i}\tn{i // 2}\n" for i in range(1, n)))
    return lambda: read_closure(root / "tree.tsv", transitive=True)


def _heights(n: int, _: Path) -> Callable[[], object]:
    from hypvision.tasks.metric_learning_metrics import GroupTree

    above = [(f"kind {i % 3}", f"group {i % 90}") for i in range(n)]
    pairs = torch.randint(n, (2, n))
    return lambda: GroupTree(above).heights(*pairs)


def _table(n: int, _: Path) -> Callable[[], object]:
    from hypvision.tasks.metric_learning_metrics import lca_heights

    above = [(f"kind {i % 3}", f"group {i % 90}") for i in range(n)]
    return lambda: lca_heights(above)


def _compared(n: int, _: Path) -> Callable[[], object]:
    from hypvision.data.annotations import compare_names

    names = _names(n)
    return lambda: compare_names(names, names[::-1], "The file")


PAIRS = dict(limit=2.3, note="compares all pairs")
CASES = {
    "loss: captions of a contrastive step": Case(_contrastive, "captions", 8192),
    # its tables stay in the caches of a processor; beyond them a doubling costs more than its work
    "loss: contrastive": Case(_loss("contrastive"), "batch", 200, **PAIRS),
    "loss: SupCon": Case(_loss("supcon"), "batch", 512, **PAIRS),
    "loss: HIER": Case(_loss("hier"), "batch", 32, **PAIRS),
    "loss: Proxy-Anchor": Case(_loss("proxy anchor"), "classes", 2500),
    "loss: ProxyNCA": Case(_loss("proxy nca"), "classes", 2500),
    "loss: triples of chains": Case(_loss("chains"), "chains", 2500),
    "metric: TopKAccuracy": Case(_metric("TopKAccuracy", _scores), "images", 2500),
    "metric: CalibrationError": Case(_metric("CalibrationError", _scores), "images", 2500),
    "metric: MultiLabelAP": Case(_metric("MultiLabelAP", _several), "images", 1000),
    "metric: GroupAccuracy": Case(
        _metric("GroupAccuracy", _scores, dict(ancestors="groups", levels=("kind", "group")), True),
        "classes",
        2500,
    ),
    "metric: HierarchicalErrors": Case(
        _metric("HierarchicalErrors", _scores, dict(ancestors="groups"), True), "classes", 1000
    ),
    "metric: RetrievalMetric": Case(
        _metric("RetrievalMetric", _embedded, dict(device="cpu"), True),
        "images and classes",
        1000,
        **PAIRS,
    ),
    "metric: ImageTextRetrieval": Case(
        _metric("ImageTextRetrieval", _pair), "pairs", 1250, **PAIRS
    ),
    "metric: heights of pairs of classes": Case(_heights, "classes", 2500),
    "metric: table of heights": Case(_table, "classes", 1000, **PAIRS),
    "data: class folders": Case(_folders, "images", 1000),
    "data: class folders, one image each": Case(_classes, "classes", 500),
    "data: multi-label table": Case(_multi_label, "images", 1000),
    "data: Stanford Online Products": Case(_products, "images", 2500),
    "data: captions": Case(_captions, "images", 1000),
    "data: COCO by pycocotools": Case(
        _coco("pycocotools"), "objects", 10000, note="for comparison"
    ),
    "data: COCO, boxes": Case(_coco("boxes"), "objects", 10000),
    "data: COCO, masks": Case(_coco("masks"), "objects", 10000),
    "data: names of a file and a config": Case(_compared, "classes", 2500),
    "data: file of a hierarchy": Case(_pairs_file, "names", 2500),
    "sampler: MPerClassBatchSampler": Case(_sampler("m"), "images", 2500),
    "sampler: BalancedSampler": Case(_sampler("balanced"), "images", 2500),
    "step: closure": Case(_closure, "names", 10000, limit=0.3, note="touches its rows alone"),
}


def measure(case: Case, size: int, repeats: int) -> float:
    """The shortest of some times of a call, in seconds of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        call = case.make(size, Path(folder))
        times = []
        for _ in range(repeats + 1):
            begin = time.process_time()
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
            times.append(time.process_time() - begin)
    return min(times[1:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help="default: all")
    parser.add_argument("--scale", type=float, default=1, help="factor of all sizes (default: 1)")
    add_run_arguments(parser, repeats=3)


def run(args: argparse.Namespace) -> int:
    """Measure, and return 1 if something grows faster than it may."""
    start(args)
    lines = [
        "| what | N | N, ms | 2 N, ms | 4 N, ms | exponent | at most | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wrong = 0
    for name in args.only or CASES:
        case = CASES[name]
        size = max(40, int(case.size * args.scale))
        times = [measure(case, factor * size, args.repeats) for factor in (1, 2, 4)]
        exponent = math.log2(max(times[2], 1e-9) / max(times[0], 1e-9)) / 2
        above = exponent > case.limit
        wrong += above
        cells = [
            name,
            f"{size:,} {case.counts}",
            *(f"{1000 * t:.1f}" for t in times),
            f"{exponent:.2f}",
        ]
        note = ", ".join(part for part in (case.note, "**above**" if above else "") if part)
        lines.append(f"| {' | '.join(cells)} | {case.limit:g} | {note} |")
    facts = "seconds of the processor, the shortest of the repeats."
    report(args, ("scale",), facts, "\n".join(lines), MARKS, INTRODUCTION)
    return 1 if wrong else 0
