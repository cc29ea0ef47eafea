"""Predictors of :mod:`hypvision.inference` for segmenters and detectors of mmseg and mmdet,
hypvision's own and stock ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import Tensor, nn

from hypvision.engine.config import Run
from hypvision.engine.extensions import PREDICTORS
from hypvision.inference.knowledge import Known
from hypvision.inference.predictors import Predictor, Request
from hypvision.inference.results import Boxes, Labels, Result, Segments
from hypvision.inference.summary import Subject
from hypvision.io import HypvisionError, Names, Plain, ensure

from .testing import kinds

BOX_SCORE = 0.3  # lowest score of a box that is drawn
_OFFSET = 1000  # mmdet's panoptic maps contain class + 1000 * number of the object


def predictor_of_model(model: BaseModel, request: Request) -> Predictor:
    """Return the predictor of a model from :func:`hypvision.load`, with ``cfg`` and
    ``dataset_meta``."""
    return _predictor(model, model.cfg, request)


def _predictor(model: BaseModel, config: Run, request: Request) -> Predictor:
    names = _classes(model, config, request)
    _give_boxes(model, request.max_boxes, request.score)
    pipeline = _pipeline(config)
    scope = config.scope
    with DefaultScope.overwrite_default_scope(scope):
        steps = Compose(pipeline)

    def prepare(image: Image.Image) -> Plain:
        pixels = np.ascontiguousarray(np.array(image)[..., ::-1])  # BGR, as OpenCV reads files
        size = pixels.shape[:2]
        loaded = dict(
            img=pixels,
            img_path=None,
            img_id=0,
            img_shape=size,
            ori_shape=size,
            scale_factor=(1.0, 1.0),
        )
        # These are the keys that LoadImageFromFile would set.
        return steps(dict(loaded, img_fields=["img"], seg_fields=[]))

    def find(prepared: list[Plain]) -> list[Result]:
        with DefaultScope.overwrite_default_scope(scope):
            batch = {key: [item[key] for item in prepared] for key in ("inputs", "data_samples")}
            samples = model.test_step(batch)
        return [result_of(sample, names, request.score, request.max_boxes) for sample in samples]

    return Predictor(
        prepare,
        find,
        batch=False,
        known=_knowledge(model, config, request, names),
        maps=getattr(model, "tells_uncertainty", False),
    )


def _knowledge(model: BaseModel, config: Run, request: Request, names: Names) -> Known:
    from hypvision.tasks.publishing import input_size

    named = (getattr(model, "dataset_meta", None) or {}).get("classes")
    source = f"the checkpoint {request.weights}" if named else f"the data of {request.model}"
    if request.classes is not None:
        source = f"the words given, by the CLIP of {request.weights or request.model}"
    size = None
    with suppress(HypvisionError):  # the size stays None if the config does not contain it
        size = input_size(config)[1:]
    resized = config.model.get("slide") is not None or any(
        "Resize" in str(step.get("type")) and step.get("scale") for step in _pipeline(config)
    )
    return Known(names, source, size, resized)


def _classes(model: BaseModel, config: Run, request: Request) -> Names:
    """Return the class names; for an open-vocabulary model set those of the request first."""
    from hypvision.clip.open_vocabulary import check_words
    from hypvision.data.classes import load_classes

    if getattr(model, "open_vocabulary", False):
        if request.classes is not None:
            model.set_test_classes(request.classes, request.things)
            check_words(model, model.test_classes)
        known = _known(model, config)
        if known and not model.train_classes:  # a training sets them from its data
            model.train_classes = load_classes(known)
        if not model.test_classes:
            model.set_test_classes(known or _unknown())
        return tuple(model.test_classes)
    if request.classes is not None or request.things is not None:
        raise HypvisionError(
            f"The classes of '{request.model}' are fixed: leave out --classes and --things."
        )
    return _known(model, config) or _unknown()


def _known(model: BaseModel, config: Run) -> Names:
    """Return the class names of the training, from the checkpoint, the config or the config's data
    set; () if none of them has names."""
    names = (getattr(model, "dataset_meta", None) or {}).get("classes")
    for dataset in [] if names else config.datasets("test"):
        with DefaultScope.overwrite_default_scope(config.scope):
            kind = DATASETS.get(str(dataset.get("type")))
        names = (dataset.get("metainfo") or {}).get("classes") or (
            getattr(kind, "METAINFO", None) or {}
        ).get("classes")
    return tuple(names or ())


def _unknown() -> NoReturn:
    raise HypvisionError(
        "Neither the checkpoint nor the config says what the classes are called. Add "
        "metainfo=dict(classes=(...)) to the test data of the config, or give --classes to an "
        "open-vocabulary model."
    )


def _pipeline(config: Run) -> list[Plain]:
    """Return the steps of the config's test pipeline after the reading of images and
    annotations."""
    dataset = config.dataset("test")
    steps = [dict(step) for step in dataset.get("pipeline") or config.get("test_pipeline") or []]
    names = kinds(steps)
    ensure(
        steps and names[-1].startswith("Pack"),
        "The test pipeline of the config should end with PackSegInputs or PackDetInputs; it is "
        f"{', '.join(names) or 'empty'}.",
    )
    kept = [step for step, name in zip(steps, names) if not name.startswith("Load")]
    if "meta_keys" in kept[-1]:  # images in memory have no paths, and heads read the other keys
        kept[-1]["meta_keys"] = tuple(
            key for key in kept[-1]["meta_keys"] if key not in ("img_path", "seg_map_path")
        )
    return kept


def _give_boxes(model: BaseModel, count: int | None, score: float | None) -> None:
    """Change the limits in a detector's config, where they would give fewer boxes than are asked
    for: at least ``count`` boxes an image, and boxes with scores down to ``score``."""
    for name, part in model.named_modules():
        limits = getattr(part, "test_cfg", None) or {}
        if count is not None and "rpn" not in name and "max_per_img" in limits:
            limits["max_per_img"] = max(count, limits["max_per_img"])
        least = limits.get("score_thr")
        if (
            score is not None
            and "max_per_img" in limits
            and isinstance(least, (int, float))
            and least > score
        ):
            limits["score_thr"] = score


def result_of(
    sample: Any, names: Sequence[str], score: float | None = None, max_boxes: int | None = None
) -> Result:
    """Return the result of a model of mmseg or mmdet for an image, from its ``pred_sem_seg``,
    ``pred_instances`` (the best boxes, with a score of at least ``score``; None: 0.3) or
    ``pred_panoptic_seg``."""
    if "pred_panoptic_seg" in sample:
        return _segments(_numpy(sample.pred_panoptic_seg.sem_seg[0]), tuple(names))
    if "pred_instances" in sample:
        found = sample.pred_instances
        order = found.scores.argsort(descending=True, stable=True)
        found = found[
            order[found.scores[order] >= (BOX_SCORE if score is None else score)][:max_boxes]
        ]
        masks = _numpy(found.masks).astype(bool) if "masks" in found else None
        return Boxes(
            _numpy(found.bboxes), _numpy(found.scores), _numpy(found.labels), tuple(names), masks
        )
    maps = {
        name: _numpy(sample.get(name).data[0])
        for name in ("radius", "uncertainty")
        if name in sample
    }
    return Labels(_numpy(sample.pred_sem_seg.data[0]), tuple(names), **maps)


def _segments(coded: np.ndarray, names: Names) -> Segments:
    codes = [code for code in np.unique(coded).tolist() if 0 <= code % _OFFSET < len(names)]
    numbers = np.zeros(coded.shape, dtype=np.int32)
    for number, code in enumerate(codes, 1):
        numbers[coded == code] = number
    return Segments(numbers, np.array([code % _OFFSET for code in codes], dtype=np.int64), names)


def _numpy(values: Tensor | np.ndarray) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def subject_of_model(model: nn.Module, shape: tuple[int, int, int]) -> Subject:
    """Return a segmenter or detector for ``hypvision summary``, up to the outputs of its heads,
    with an image of the ``shape`` (C, H, W). The second stage of a detector looks at the regions
    that its first stage proposes."""
    about = dict(
        img_shape=shape[1:], ori_shape=shape[1:], batch_input_shape=shape[1:], pad_shape=shape[1:]
    )

    def run(images: Tensor) -> Any:
        samples = [BaseDataElement(metainfo=dict(about, scale_factor=(1.0, 1.0))) for _ in images]
        return model(images, samples, mode="tensor")

    return Subject(model.eval(), torch.randn(1, *shape), run)


PREDICTORS.update(mmseg=_predictor, mmdet=_predictor)
