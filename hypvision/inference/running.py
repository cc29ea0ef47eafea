"""Run a predictor over all images of the sources; threads read and prepare the next images while
the model computes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Generic, cast

import torch
from PIL import Image
from typing_extensions import NamedTuple, TypeVar

from hypvision.io import HypvisionError, StrPath, Values, name_or_path
from hypvision.io.images import leaving_out

from .knowledge import Known, doubts, warnings_of
from .predictors import Predictor, Request, load_predictor
from .results import Result
from .sources import Frame, Source, Sources, check_every, find_sources, in_advance

_R = TypeVar("_R", bound=Result, default=Result)


_Found = TypeVar("_Found", bound=Result, default=Result, covariant=True)


class Prediction(NamedTuple, Generic[_Found]):
    """The result of a model for one image or frame.

    Attributes:
        file: the path or address of the image or video.
        frame: number of the frame in its video; None for an image.
        size: width and height in pixels.
        result: the result, such as :class:`~hypvision.inference.results.Classes` or
            :class:`~hypvision.inference.results.Boxes`.
        known: the model's classes, where they come from, and the size of its training images.
        doubts: reasons to doubt the result, see :func:`hypvision.inference.knowledge.doubts`.
    """

    file: str
    frame: int | None
    size: tuple[int, int]
    result: _Found
    known: Known = Known()
    doubts: tuple[str, ...] = ()


def results(
    predictor: Predictor, sources: Sources, batch: int = 8, failed: list[str] | None = None
) -> Iterator[tuple[Frame, Image.Image, Result]]:
    """Yield each frame of the sources with its image, in RGB, and its result; the model computes
    ``batch`` images at a time.

    Images and videos that cannot be read, or that the model rejects, are skipped, with a message in
    ``failed``; with ``failed=None`` they are an error.
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
            for one in waiting:  # Find the image that failed by giving the model one at a time.
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
    model: StrPath | Predictor,
    weights: StrPath | None = None,
    *,
    classes: StrPath | Sequence[str] | None = None,
    things: StrPath | Sequence[str] | None = None,
    score: float | None = None,
    max_boxes: int | None = None,
    every: int = 1,
    batch: int = 8,
    device: str = "cpu",
    expect: type[_R] | None = None,
    cfg_options: Values | None = None,
    **arguments: Any,
) -> list[Prediction[_R]]:
    """Predict with any model on any images, and return classes, boxes, masks, label maps, segments
    or embeddings.

    Args:
        source: a path of an image, folder, video or list of paths (``.txt``), or a pattern; an
            image itself (PIL, or RGB uint8 ``(H, W, 3)``); or several of these.
        model: the name of a timm model; a record of the zoo (``"zoo:NAME"``, or its name); a
            release (``"hf-hub:USER/REPO"``); the path of a training's config; or a predictor from
            :func:`~hypvision.inference.load_predictor`, to use it again.
        weights: the checkpoint of a training; without one, a timm model has its published weights.
        classes: the classes that an open-vocabulary model looks for: names, or anything that
            :func:`hypvision.data.classes.load_classes` takes.
        things: those of ``classes`` whose objects a panoptic model counts one by one; None: all.
        score: leave out boxes and labels with lower scores; None: 0.3 for boxes, 0.5 for labels.
        max_boxes: keep at most this many boxes an image, the best ones.
        every: from a video take only every ``every``-th frame.
        batch: number of images that a classifier processes at a time.
        device: the device that computes.
        expect: the class of results that the model must give, e.g.
            :class:`~hypvision.inference.Boxes`, so that a type checker knows the attributes of
            ``result``; None: any class.
        cfg_options: changes of the config, with dotted keys.
        **arguments: arguments of the timm model, as in ``model.backbone`` of a config.

    Returns:
        One :class:`~hypvision.inference.Prediction` for each image, in the order given, then one
        for each frame of the videos; a file that is named twice has one. Each also has what the
        model knows (``known``) and the reasons why its result is doubtful (``doubts``); a warning
        states them in a sentence (:mod:`hypvision.inference.knowledge`).

    >>> detector = "faster-rcnn_tf_efficientnet_lite0.emoji"
    >>> [found] = hypvision.predict("scene.jpg", detector, expect=Boxes)
    >>> found.result.draw(Image.open("scene.jpg")).show()
    """
    sources = find_sources(source, every)
    check_every(every, sources)
    kind = cast(type[_R], expect or Result)
    if not isinstance(model, Predictor):
        name_or_path(model=model)
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
