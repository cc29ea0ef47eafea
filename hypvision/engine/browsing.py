"""Show what a model gets as its input (``hypvision browse``): augmented samples of a config's data,
with their labels drawn in.

The samples pass through every step before the network: the transforms of the data set, the model's
preprocessor (normalisation, padding) and, in the training data of a classifier, mixup. Then the
normalisation is undone, so that the result is a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from hypvision.data.preprocessing import set_preprocessing
from hypvision.data.usage import classes_of
from hypvision.io import HypvisionError, Plain, StrPath, ensure, few
from hypvision.io.images import leaving_out, require_all
from hypvision.viz.overlay import add_legend, draw_boxes, paint
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import fitted, titled_sheet

from .checking import Report, open_parts, read_config
from .config import PHASES
from .hooks import seed_everything

CELL = 256
"""The long side of a picture on the sheet, in pixels."""


class Part(NamedTuple):
    """The samples shown of one part of the data (``phase``: train, val or test): ``sheet``, the
    pictures above their annotations; ``about``, lines on number, size, normalisation and classes;
    ``shown``, the number of samples."""

    phase: str
    sheet: Image.Image
    about: list[str]
    shown: int


class _Normalisation(NamedTuple):
    """The normalisation of images, ``x = (pixel - mean) / std`` in each channel for pixels from 0
    to ``top``; without a mean there is none. ``who`` names what applies it. ``done`` says whether
    the images on the sheet are normalised already: a CLIP model normalises inside, and is given
    bytes or floats up to 255."""

    mean: Tensor | None = None
    std: Tensor | None = None
    top: float = 255.0
    who: str = ""
    done: bool = True

    def undo(self, image: Tensor) -> np.ndarray:
        """Return the picture, uint8 (H, W, 3), of a normalised image (C, H, W): its first three
        channels, or the first one as grey if there are fewer."""
        pixels = image.detach().float()
        if self.mean is not None and self.std is not None and self.done:
            pixels = 255 / self.top * (pixels * self.std[:, None, None] + self.mean[:, None, None])
        pixels = pixels.round().clamp(0, 255).to(torch.uint8)
        pixels = pixels[:1].expand(3, -1, -1) if len(pixels) < 3 else pixels[:3]
        return pixels.permute(1, 2, 0).numpy()

    def __str__(self) -> str:
        if self.mean is None or self.std is None:
            return "not normalised"
        mean, std = (
            ", ".join(f"{value:.4g}" for value in values.tolist())
            for values in (self.mean, self.std)
        )
        return (
            f"normalised by {self.who}: mean {mean}; std {std} (of pixels from 0 to {self.top:.0f})"
        )


@dataclass
class _Fed:
    """A sample as the network gets it: an image (C, H, W), the title below its picture, its
    annotation of mmseg or mmdet, and the numbers of the classes in it."""

    image: Tensor
    title: str = ""
    truth: Any = None
    classes: set[int] = field(default_factory=set)


def browse(
    config: StrPath | Config,
    options: Plain | None = None,
    phases: Sequence[str] = PHASES,
    count: int = 12,
    seed: int = 0,
    out: StrPath | None = None,
    failed: list[str] | None = None,
) -> list[Part]:
    """Return the samples of a config as its model gets them, one :class:`Part` for each phase.

    Args:
        config, options: the config and its changes, as for
            :func:`~hypvision.engine.config.load_config`.
        phases: the parts of the data to show (train, val, test). Phases that the config lacks, and
            those with the same data as an earlier phase, are left out.
        count: number of samples of each phase.
        seed: seed of the choice of samples and of the augmentations.
        out: the folder that the caller will write pictures into; it must not lie in the data.
        failed: a list that gets the messages of images that cannot be read; None: the first such
            image raises an error.
    """
    config = read_config(config, options, out)
    report = Report([], [], [], 0, [])
    with DefaultScope.overwrite_default_scope(config.scope):
        model, parts = open_parts(config, phases, report)
        if report.faults:
            raise HypvisionError(f"{report.faults[0]} `hypvision check` lists all faults.")
        ensure(
            parts,
            f"The config '{config.filename}' has no data for {' or '.join(phases)}. Choose "
            "another part.",
        )
        if model is None:
            raise HypvisionError(
                f"{report.notes[0]} The model is needed to show its input, so correct the config."
            )
        return [
            _part(config, model, dataset, phase, count, seed, failed)
            for phase, dataset in parts.items()
        ]


def _part(
    config: Config,
    model: Any,
    dataset: Any,
    phase: str,
    count: int,
    seed: int,
    failed: list[str] | None,
) -> Part:
    inner = getattr(model, "host", model)
    if hasattr(inner, "clip"):
        set_preprocessing(dataset, inner.clip)
    loader = config[f"{phase}_dataloader"]
    samples = _samples(dataset, count, seed, failed)
    names = classes_of(dataset)
    size = max(1, int(loader.get("batch_size") or 1))
    training = phase == "train"
    model.train(training)
    fed: list[_Fed] = []
    for start in range(0, len(samples), size):
        fed += _fed(model, samples[start : start + size], names, training)
    how = _normalisation(model, dataset)
    bgr = _is_bgr(model, samples[0])
    tiles = [(_tile(sample, how, bgr, names), sample.title) for sample in fed]
    total = f"{len(dataset)} samples" if hasattr(dataset, "__len__") else "an endless stream"
    heading = f"{phase}: {len(samples)} of {total} as the model is fed them (seed {seed})"
    sheet = titled_sheet(tiles, heading, columns=min(len(tiles), 4))
    present = sorted(set().union(*(sample.classes for sample in fed)))
    if present:
        colours = label_colours(len(names))
        sheet = add_legend(sheet, [(names[label], colours[label]) for label in present])
    return Part(phase, sheet, [heading, *_about(fed, how, names)], len(samples))


def _about(fed: Sequence[_Fed], how: _Normalisation, names: Sequence[str]) -> list[str]:
    shapes = [tuple(sample.image.shape) for sample in fed]
    sizes = " or ".join(" x ".join(map(str, shape)) for shape in list(dict.fromkeys(shapes))[:4])
    low = min(float(sample.image.min()) for sample in fed)
    high = max(float(sample.image.max()) for sample in fed)
    about = [
        f"images {sizes}{', ...' if len(set(shapes)) > 4 else ''}, values from {low:.3g} to "
        f"{high:.3g}, {how}"
    ]
    if names:
        about.append(f"{len(names)} classes: {few(names, 20)}")
    return about


def _samples(dataset: Any, count: int, seed: int, failed: list[str] | None = None) -> list[Plain]:
    seed_everything(seed)
    found: list[Any] = []
    if isinstance(dataset, IterableDataset):
        found = list(islice(dataset, count))
    else:
        for i in np.random.default_rng(seed).permutation(len(dataset))[:count]:
            # The error of an image names its file, so no name is passed here.
            with leaving_out("", failed):
                found.append(dataset[int(i)])
    if not found:
        require_all(failed or [], done=0)
    for sample in found:
        inputs = sample.get("inputs") if isinstance(sample, dict) else None
        if not isinstance(inputs, Tensor) or inputs.ndim < 3:
            raise HypvisionError(
                "The samples of this data have no pictures, so there is nothing to show. Give a "
                "config with images."
            )
    return found


# From samples to the inputs of the network


def _fed(model: Any, samples: list[Plain], names: Sequence[str], training: bool) -> Iterator[_Fed]:
    """Yield the samples of a batch after the model's preprocessor and, in training, after mixup."""
    if "data_samples" in samples[0]:
        yield from _of_library(model.data_preprocessor(pseudo_collate(samples), training))
        return
    titles = [_title(sample, names) for sample in samples]
    images = list(map(itemgetter("inputs"), samples))
    if training and getattr(model, "mixup", None) is not None and len(samples) > 1:
        labels = torch.stack(list(map(torch.as_tensor, map(itemgetter("label"), samples))))
        images, shares = model.mix(torch.stack(images), labels)
        titles = [_mixed(share, names) for share in shares]
    for sample, views, title in zip(samples, images, titles):
        yield from (_Fed(view, title) for view in views.reshape(-1, *views.shape[-3:]))
        if isinstance(sample.get("box_inputs"), Tensor):
            yield from _boxes(sample)


def _of_library(data: Plain) -> Iterator[_Fed]:
    """Yield the images and annotations of a batch of mmseg or mmdet."""
    for image, truth in zip(data["inputs"], data["data_samples"]):
        yield _Fed(image, Path(str(truth.get("img_path") or "")).name, truth)


def _boxes(sample: Plain) -> Iterator[_Fed]:
    """Yield the boxes of an image whose boxes have captions, each as a picture of its own."""
    boxes = sample["box_inputs"]
    words = sample.get("box_caption", "")
    words = [words] if isinstance(words, str) else words[: sample["box_count"]]
    for pixels, text in zip(boxes.reshape(-1, *boxes.shape[-3:]), words):
        yield _Fed(pixels, f"a box of it: {text}")


def _title(sample: Plain, names: Sequence[str]) -> str:
    if sample.get("caption"):
        return str(sample["caption"])
    label = torch.as_tensor(sample.get("label", -1))
    numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
    known = [names[n] if 0 <= n < len(names) else f"label {n}" for n in numbers if n >= 0]
    return ", ".join(known) or "no label"


def _mixed(shares: Tensor, names: Sequence[str]) -> str:
    """Return the classes in a mixed target with their shares, as text. Label smoothing gives all
    other classes the same small share, so the smallest share is left out."""
    found = [
        n for n in shares.argsort(descending=True).tolist() if shares[n] > shares.min() + 1e-4
    ][:2]
    return " + ".join(f"{100 * float(shares[n]):.0f} % {names[n]}" for n in found)


def _normalisation(model: Any, dataset: Any) -> _Normalisation:
    preprocessor: Any = getattr(model, "data_preprocessor", None)
    if getattr(preprocessor, "_enable_normalize", False):
        mean = preprocessor.mean.flatten().cpu()
        std = preprocessor.std.flatten().cpu()
        return _Normalisation(mean, std, 255.0, "the preprocessor of the model")
    for step in getattr(getattr(dataset, "transform", None), "transforms", ()):
        if hasattr(step, "mean") and hasattr(step, "std"):
            mean, std = (
                torch.as_tensor(values).float().flatten() for values in (step.mean, step.std)
            )
            return _Normalisation(mean, std, 1.0, "the transform of the data")
    inner = getattr(model, "host", model)
    mean, std = (getattr(inner, name, None) for name in ("mean", "std"))
    # Without a preprocessor or a normalising transform, it is a CLIP model that holds mean and std.
    if isinstance(mean, Tensor) and isinstance(std, Tensor):
        top = 255.0 if float(mean.max()) > 1 else 1.0
        return _Normalisation(
            mean.flatten().cpu(), std.flatten().cpu(), top, "the model itself", done=False
        )
    return _Normalisation()


def _is_bgr(model: Any, sample: Plain) -> bool:
    """Return whether images are still in the channel order of OpenCV (BGR) when they enter the
    network; mmseg and mmdet read images by OpenCV."""
    names = ("_channel_conversion", "channel_conversion", "bgr_to_rgb")
    return "data_samples" in sample and not any(
        getattr(model.data_preprocessor, name, False) for name in names
    )


# Drawing pictures with annotations


def _tile(sample: _Fed, how: _Normalisation, bgr: bool, names: Sequence[str]) -> Image.Image:
    """Return the picture of a sample, its long side :data:`CELL` pixels, with its annotation drawn
    in."""
    pixels = how.undo(sample.image)
    pixels = np.ascontiguousarray(pixels[..., ::-1] if bgr else pixels)
    photo = Image.fromarray(pixels)
    scale = CELL / max(photo.size)
    image = fitted(photo, CELL)
    if sample.truth is None:
        return image
    colours = label_colours(len(names))
    truth = sample.truth
    if "gt_sem_seg" in truth:
        labels = np.asarray(
            truth.gt_sem_seg.sem_seg if "sem_seg" in truth.gt_sem_seg else truth.gt_sem_seg.data
        )
        labels = _resized(labels.reshape(labels.shape[-2:]), image.size)
        labels[(labels < 0) | (labels >= len(names))] = -1
        sample.classes.update(np.unique(labels[labels >= 0]).tolist())
        image = paint(image, labels, colours, 0.5)
    if "gt_instances" not in truth:
        return image
    objects = truth.gt_instances
    shades = colours[np.asarray(objects.labels)]
    if "gt_sem_seg" not in truth and "masks" in objects:
        image = _masked(image, objects.masks, shades)
    boxes = np.asarray(getattr(objects.bboxes, "tensor", objects.bboxes)).reshape(-1, 4) * scale
    sample.title += f" ({len(boxes)} box{'es' * (len(boxes) != 1)})"
    return draw_boxes(image, boxes, [names[label] for label in np.asarray(objects.labels)], shades)


def _masked(image: Image.Image, masks: Any, shades: np.ndarray) -> Image.Image:
    """Return the image with the masks of mmdet's objects painted in, each in its colour of
    ``shades``."""
    if hasattr(masks, "to_bitmap"):
        masks = masks.to_bitmap()
    owner = np.full(image.size[::-1], -1)
    for number, mask in enumerate(np.asarray(getattr(masks, "masks", masks))):
        owner[_resized(mask, image.size) > 0] = number
    return paint(image, owner, shades, 0.5)


def _resized(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    resized = Image.fromarray(labels.astype(np.int32)).resize(size, Image.Resampling.NEAREST)
    return np.array(resized).astype(np.int64)
