"""A predictor over all images of the sources, read and prepared by threads while the model
computes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from typing_extensions import TypeVar

from hypvision.inference.knowledge import doubts, warnings_of
from hypvision.inference.predictors import Predictor, Request, load_predictor
from hypvision.inference.results import Result
from hypvision.inference.sources import (
    Frame,
    Source,
    Sources,
    check_every,
    find_sources,
    in_advance,
)
from hypvision.inference.writers import Prediction
from hypvision.io.errors import HypvisionError
from hypvision.io.images import leaving_out

_R = TypeVar("_R", bound=Result, default=Result)


def results(
    predictor: Predictor, sources: Sources, batch: int = 8, failed: list[str] | None = None
) -> Iterator[tuple[Frame, Image.Image, Result]]:
    """Each frame of the sources with its image, RGB, and what is found in it, ``batch`` images at a
    time.

    Images and videos that cannot be read or that the model rejects are skipped, with a message in
    ``failed``; None: an error.
    """
    count = batch if predictor.batch else 1

    def read(frame: Frame) -> tuple[Image.Image, Any] | None:
        with leaving_out(frame.file, failed):
            image = frame.open()
            seen = image if predictor.channels == 3 else frame.open(predictor.channels)
            return image, predictor.prepare(seen)
        return None

    def find(
        waiting: list[tuple[Frame, Image.Image, Any]],
    ) -> Iterator[tuple[Frame, Image.Image, Result]]:
        found: Sequence[Result] = ()
        alone = failed if len(waiting) == 1 else None
        try:
            with torch.inference_mode(), leaving_out(waiting[0][0].file, alone):
                found = predictor.find([prepared for _, _, prepared in waiting])
        except HypvisionError:
            if failed is None or len(waiting) == 1:
                raise
            for one in waiting:  # one at a time, to find the image that failed
                yield from find([one])
        for (frame, image, _), result in zip(waiting, found):
            yield frame, image, result

    waiting: list[tuple[Frame, Image.Image, Any]] = []
    for frame, ready in in_advance(read, sources.frames(failed), ahead=2 * count):
        if ready is not None:
            waiting.append((frame, *ready))
        if len(waiting) == count:
            yield from find(waiting)
            waiting = []
    if waiting:
        yield from find(waiting)


def predict(
    source: Source | Sequence[Source],
    model: str | Path | Predictor,
    weights: str | Path | None = None,
    *,
    classes: str | Path | Sequence[str] | None = None,
    things: str | Path | Sequence[str] | None = None,
    score: float | None = None,
    max_boxes: int | None = None,
    every: int = 1,
    batch: int = 8,
    device: str = "cpu",
    expect: type[_R] | None = None,
    cfg_options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> list[Prediction[_R]]:
    """Predict with any model on any images: classes, boxes, masks, label maps, segments or
    embeddings.

    Args:
        source: a path of an image, a folder, a pattern, a list of paths (``.txt``), a video; an
            image itself (PIL, or RGB uint8 (H, W, 3)); or several of these.
        model: a timm model, a record of the zoo (``"zoo:NAME"``, or its name), a release
            (``"hf-hub:USER/REPO"``), the config of a training, by its path; or what
            :func:`~hypvision.inference.load_predictor` gives, to use it again.
        weights: the checkpoint of the training; without, a timm model has its published weights.
        classes: what an open-vocabulary model looks for: names, or anything that
            :func:`hypvision.data.classes.load_classes` takes.
        things: those of the classes whose objects a panoptic model counts one by one; None: all.
        score: leave out boxes and labels of lower scores; default 0.3 for boxes, 0.5 for labels.
        max_boxes: of an image at most, the best ones.
        every: take every so-many-th frame of a video.
        batch: images at a time, of a classifier.
        device: where to compute.
        expect: the kind of result that the model must give, e.g.
            :class:`~hypvision.inference.Boxes`; a type checker then knows what ``result`` has.
            None: any kind.
        cfg_options: changes of the config, with dotted keys.
        **arguments: of the timm model, as ``model.backbone`` of a config has them.

    Returns:
        One :class:`~hypvision.inference.Prediction` an image, in their order, frames of videos
        last; a file that is named twice has one. Each result also has the classes of the model and
        the reasons why it is doubtful; a warning gives them in a sentence
        (:mod:`hypvision.inference.knowledge`).

    >>> detector = "faster-rcnn_tf_efficientnet_lite0.emoji"
    >>> [found] = hypvision.predict("scene.jpg", detector, expect=Boxes)
    >>> found.result.draw(Image.open("scene.jpg")).show()
    """
    sources = find_sources(source, every)
    check_every(every, sources)
    kind = cast(type[_R], expect or Result)
    if not isinstance(model, Predictor):
        options = cfg_options or {}
        model = load_predictor(
            Request(model, weights, arguments, classes, things, score, device, max_boxes, options)
        )
    found = []
    for frame, image, result in results(model, sources, batch):
        if not isinstance(result, kind):
            raise HypvisionError(
                f"The model gives {type(result).__name__} ({result.task}), not {kind.__name__}. "
                f"Give another model, or expect={type(result).__name__}."
            )
        doubtful = doubts(result, image.size, model.known)
        found.append(
            Prediction(frame.file, frame.number, image.size, result, model.known, doubtful)
        )
    for sentence in warnings_of(((one.file, one.doubts) for one in found), model.known):
        warnings.warn(sentence, stacklevel=2)
    return found
