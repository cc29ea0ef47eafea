"""Segment any image by any class names.

>>> found = segment("street.jpg", ["car", "road", "sky"])
>>> hypvision.viz.draw_segmentation(found.image, found.labels, found.classes).show()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from hypvision.checkpoints.language import language_of
from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.sources import fetch
from hypvision.checkpoints.storage import read_header
from hypvision.clip.models import create_clip
from hypvision.clip.names import clip_options
from hypvision.clip.open_vocabulary import check_words
from hypvision.clip.towers import patch_size
from hypvision.data.classes import CLASS_LISTS, SUFFIXES, load_classes, split_classes
from hypvision.io import HypvisionError, Plain, StrPath, Values, refuse
from hypvision.io.files import names_file
from hypvision.io.images import open_image

from .official import segmenter_names, segmenter_variant
from .segmenter import OpenVocabSegmenter

_OFFICIAL: dict[str, Plain] = {
    "vitb16": dict(clip=dict(name="ViT-B-16", force_quick_gelu=True)),
    "vitl14-336": dict(clip=dict(name="ViT-L-14-336", force_quick_gelu=True), resolution=336),
}
_SMALL: dict[str, Plain] = {  # options for CLIP models of small images
    "emoji-t8": dict(resolution=64, crop=64, slide=160),
}


class Segmentation(NamedTuple):
    """The result of :func:`segment`: the class number of each pixel, int64 ``(H, W)``, the names of
    the classes, and the RGB image.

    :func:`hypvision.viz.draw_segmentation` paints it.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    image: Image.Image

    def label_image(self) -> Image.Image:
        """Return the class numbers as an image of 8 bits, or of 16 bits for more than 255
        classes."""
        return Image.fromarray(
            self.labels.astype(np.uint8 if len(self.classes) <= 255 else np.uint16)
        )


def load_segmenter(
    weights: StrPath | None = None,
    config: Values | None = None,
    clip: str | None = None,
) -> OpenVocabSegmenter:
    """Return a segmenter from a checkpoint, or from a plain CLIP model.

    Args:
        weights: a converted or trained checkpoint of a whole segmenter. None: a plain CLIP with a
            head of two parameters, which needs no training.
        config: the ``model`` of the config of its training, ``load_config(FILE).model`` of
            :mod:`hypvision.engine.config`; weights of the zoo and converted official checkpoints do
            not need it, and without weights it is an error. The checkpoint's own prompt templates
            replace those of the config.
        clip: without weights: a CLIP model, see :func:`~hypvision.clip.names.clip_options`; None:
            ``ViT-B-16:openai``. ``emoji-t8``, which knows a few emoji on photos, ships with the
            project.
    """
    refuse(
        (
            weights is None and config is not None,
            "A config describes the segmenter in a checkpoint, but no weights are given. Give them "
            "(--weights FILE), or leave out the config and name a CLIP (--clip NAME).",
        ),
        (
            weights is not None and clip is not None,
            "--clip is for segmenting without --weights. Leave out one of the two.",
        ),
    )
    if weights is None:
        return _plain_segmenter(clip or "ViT-B-16:openai")
    content = read(weights)
    found = segmenter_names(network_weights(content, part=None))
    language = language_of(content)
    options = _options(found, config, weights)
    advice = "Give the --config that it was trained with."
    try:
        # The checkpoint already contains CLIP's weights.
        options["clip"] = {**options.get("clip", {}), "load_weights": False}
        if language.templates:
            options["templates"] = language.templates
        model = OpenVocabSegmenter(**options)
    except TypeError as error:
        raise HypvisionError(
            f"The config of the segmenter '{weights}' has a wrong value: {error}. {advice}"
        ) from error
    load_into(model, found, weights, "the segmenter", advice, extra=True)
    model.words = language.words
    return model.eval()


def _plain_segmenter(clip: str) -> OpenVocabSegmenter:
    """Return a segmenter of a CLIP and the similarity head, which needs no training."""
    named = clip_options(clip)
    bundle = create_clip(**named)
    patch = math.lcm(*patch_size(bundle.model))
    # For patches of 14 pixels the resolution becomes 336.
    options: Plain = dict(resolution=24 * patch) if 384 % patch else {}
    options.update(_SMALL.get(named["name"], {}))
    return OpenVocabSegmenter(bundle, tune="frozen", head=dict(type="similarity"), **options).eval()


def _options(found: Values, config: Values | None, weights: StrPath) -> Plain:
    """Return the options of the segmenter in a checkpoint: from the given config, from that in the
    file, or for an official checkpoint from the sizes of its weights."""
    if config is None:
        path = fetch(weights)
        if path.suffix == ".safetensors":
            config = read_header(path).get("model")  # a published file contains its config
    if config is not None:
        return _options_of(config, weights)
    variant = segmenter_variant(found)[0]
    family, _, size = variant.partition("-")
    if size not in _OFFICIAL:
        raise HypvisionError(
            f"'{weights}' belongs to a model of another size ({variant}). Give its config with "
            "--config."
        )
    return dict(_OFFICIAL[size], tune="adapter" if family == "hyperclip" else "frozen")


def _options_of(config: Any, weights: StrPath) -> Plain:
    model = dict(config) if isinstance(config, Mapping) else {}
    if model.pop("type", None) != "HyperCLIPSegmentor":
        raise HypvisionError(
            f"'{weights}' or its config describes no HyperCLIPSegmentor, which open-vocabulary "
            "segmentation needs. Give the checkpoint and the config of one."
        )
    for name in (
        "train_classes",
        "test_classes",
        "background_from",
        "ignore_index",
        "data_preprocessor",
        "init_cfg",
    ):
        model.pop(name, None)
    return model


@lru_cache(maxsize=1)
def _default(
    weights: str | None, clip: str | None, *stamps: tuple[int, int] | None
) -> OpenVocabSegmenter:
    return load_segmenter(weights, clip=clip)


def _stamp(name: StrPath | None) -> tuple[int, int] | None:
    """Return the size and the time of the last change of a file, so that a file that was trained
    anew is loaded again; None if there is no file. ``name`` is its path, or
    ``ARCHITECTURE:PATH``."""
    for path in () if name is None else (Path(name), Path(str(name).partition(":")[2] or name)):
        if path.is_file():
            return path.stat().st_size, path.stat().st_mtime_ns
    return None


def segment(
    image: StrPath | Image.Image | np.ndarray,
    classes: StrPath | Sequence[str],
    model: OpenVocabSegmenter | None = None,
    weights: StrPath | None = None,
    clip: str | None = None,
) -> Segmentation:
    """Segment an image by class names, and return the class of each pixel.

    Args:
        image: a path, a PIL image, or an RGB array uint8 ``(H, W, 3)``.
        classes: names, or anything that :func:`~hypvision.data.classes.load_classes` takes. The
            model must know at least one of them, and distinguish them all
            (:mod:`hypvision.clip.open_vocabulary`).
        model: a segmenter; None: the segmenter of :func:`load_segmenter`, which is cached.
        weights, clip: arguments of :func:`load_segmenter`; an error beside ``model``.
    """
    if model is not None and (weights is not None or clip is not None):
        raise HypvisionError(
            "segment takes a model, or weights or a clip from which to make one, but not both. "
            "Leave out one."
        )
    name = f"The image '{image}'" if isinstance(image, (str, Path)) else "The image"
    image = open_image(image)
    names = load_classes(classes)
    if model is None:
        names_of = (None if value is None else str(value) for value in (weights, clip))
        model = _default(*names_of, _stamp(weights), _stamp(clip))
    model.check_size(image.size[::-1], name)
    if names != model.classes:
        check_words(model, names)
        model.set_classes(names)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return Segmentation(model.predict([pixels])[0].cpu().numpy(), names, image)


def parse_classes(text: str) -> str | list[str]:
    """Return the class names in a text such as ``"cat, dog"`` as a list; the name of a known list
    or a path (:func:`~hypvision.io.files.names_file`) is returned as it is.

    Names are separated by commas or line breaks, as in CSV: ``'"cat, black", dog'`` is two names.
    ``"cat,"`` is a name even where a file ``cat`` exists.
    """
    if text in ("imagenet", *CLASS_LISTS) or names_file(text, SUFFIXES):
        return text
    return split_classes(text, "The list of classes")
