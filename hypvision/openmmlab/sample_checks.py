"""Error messages for samples of mmseg and mmdet that name the file.

Data sets of both libraries read an image and its annotation when a batch asks for them, in a
pipeline of transforms. Its errors name no file, and it lets wrong files through.
:class:`CheckSamplesHook` puts a :class:`CheckedPipeline` around the pipeline of every data set,
whose errors name the file; for correct samples it adds only a check of the labels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset, Compose
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hypvision.data.samplers import evenly
from hypvision.data.usage import leaves
from hypvision.engine.extensions import RUN_HOOKS
from hypvision.engine.hooks import DatasetHook, class_heads, has_fixed_classes, network_of
from hypvision.io import HypvisionError, Plain, refuse, some
from hypvision.io.images import label_palette

_logger = logging.getLogger(__name__)


class CheckedPipeline:
    """A pipeline of transforms whose errors name the file.

    Args:
        pipeline: the pipeline of the data set, a function of its ``data_info``.
        classes: class names of a segmentation data set; None: labels need no check.
        ignore_index: the label of ignored pixels.

    Raises:
        HypvisionError: (in a call) an image or its annotation cannot be read, or a label map has a
            label that is not a class.
    """

    def __init__(
        self, pipeline: Any, classes: tuple[str, ...] | None = None, ignore_index: int = 255
    ):
        self.pipeline = pipeline
        self.classes = classes
        self.ignore_index = ignore_index

    def __getattr__(self, name: str) -> Any:  # some code in mmdet reads pipeline.transforms
        if name == "pipeline":
            raise AttributeError(name)
        return getattr(self.pipeline, name)

    def __call__(self, data_info: Plain) -> Any:
        # Transforms add to the dict that they get, so the paths are read first.
        image: str | None = data_info.get("img_path")
        labels: str | None = data_info.get("seg_map_path")
        shift = int(bool(data_info.get("reduce_zero_label")))
        try:
            result = self.pipeline(data_info)
        except (HypvisionError, MemoryError):
            raise
        # hypvision's readers name the file; these errors come from mmdet's and from remote stores.
        except Exception as error:
            loader = _loader_of(error)
            if image is None or not loader:
                raise
            raise HypvisionError(_unreadable(error, loader, image, labels)) from error
        if image and labels and isinstance(result, dict):
            samples = result.get("data_samples")
            # Of several views of one image only the first is checked.
            self._check_labels(samples[0] if isinstance(samples, list) else samples, labels, shift)
        return result

    def _check_labels(self, sample: Any, path: str, shift: int) -> None:
        truth = None if sample is None else sample.get("gt_sem_seg")
        if self.classes is None or truth is None:
            return
        found = truth.data
        count = len(self.classes)
        wrong = found[((found >= count) | (found < 0)) & (found != self.ignore_index)]
        if wrong.numel():
            raise HypvisionError(
                f"The label map '{path}' has the label {int(wrong.max()) + shift}, which is out of "
                f"range: the data set has {count} classes, so labels from {shift} to "
                f"{count - 1 + shift} are expected, and {self.ignore_index} for "
                "ignored pixels. Correct the file, or name all classes in metainfo; if labels "
                "begin at 1 and pixels of label 0 are to be ignored, set reduce_zero_label=True."
            )


def _unreadable(error: Exception, loader: str, image: str, labels: str | None) -> str:
    remedy = "Correct the annotation or replace the file, or remove both from the data."
    if isinstance(error, KeyError) and error.args == ("mask",):
        remedy = (
            "It has boxes without masks, and the config trains masks (with_mask=True): see "
            "docs/own-data.md."
        )
    annotation = f"its label map '{labels}'" if labels else "its annotation"
    reason = f"{type(error).__name__}: {error}"
    return f"{loader} cannot read '{image}' or {annotation} ({reason}). {remedy}"


def _loader_of(error: Exception) -> str:
    """Return the name of the transform, which begins with Load, that was reading a file when the
    error occurred; empty if there was none."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = type(trace.tb_frame.f_locals.get("self")).__name__
        found = name if name.startswith("Load") else found
        trace = trace.tb_next
    return found


def _leaves(dataset: Any) -> Iterator[BaseDataset]:
    return leaves(dataset, lambda inner: isinstance(inner, BaseDataset))


def watch_samples(dataset: Any) -> None:
    """Put a :class:`CheckedPipeline` around each pipeline of a data set of mmseg or mmdet, also
    inside wrappers."""
    for leaf in _leaves(dataset):
        if isinstance(leaf.pipeline, Compose):
            ignored = getattr(leaf, "ignore_index", None)
            classes = leaf.metainfo.get("classes")
            # Only data sets of mmseg have an ignored label.
            labelled = () if ignored is None else (classes, ignored)
            leaf.pipeline = CheckedPipeline(leaf.pipeline, *labelled)


def _label_loader(step: Any) -> Any:
    """Return the transform that reads label maps, in a pipeline of any depth; None if there is
    none."""
    if hasattr(step, "_load_seg_map") and hasattr(step, "last_is_ignored"):
        return step
    inner = (
        step
        if isinstance(step, (list, tuple))
        else getattr(step, "transforms", getattr(step, "subroutines", ()))
    )
    return next((found for found in map(_label_loader, inner) if found is not None), None)


def check_label_maps(dataset: Any) -> None:
    """Raise an error for label maps from which nothing can be learned. Up to 100 maps of a data set
    of mmseg are read, until one has two classes; all maps are read if only the first class occurs.

    Raises:
        HypvisionError: all maps have only the first class, which cannot be right; or palettes in
            the files have the classes in another order than the config.
    """
    loader = _label_loader(dataset.pipeline)
    classes = dataset.metainfo.get("classes")
    if loader is None or not classes or not hasattr(dataset, "mask_palette"):
        return
    ignored = dataset.ignore_index
    seen, info = _labels_in_maps(dataset, loader)
    if len(seen - {ignored}) > 1:
        return
    zero = info.get("reduce_zero_label")
    where = f"The label maps of '{dataset.usage.place}' (e.g. '{info['seg_map_path']}')"
    binary = (
        "Masks of 0 and 255, black and white, are read as two classes with rgb_masks=True and "
        "metainfo=dict(classes=('background', 'object'), palette=[(0, 0, 0), (255, 255, 255)])."
    )
    one = (
        f"{where} have no class but '{classes[0]}' (and ignored pixels: {ignored in seen}), so "
        "that every network is right everywhere."
    )
    refuse(
        (
            seen <= {ignored},
            f"{where} have no label that counts, only ignored pixels (reduce_zero_label={zero}): "
            f"nothing can be learned or measured. Classes: {some(classes)}. {binary}",
        ),
        (
            len(classes) == 1,
            f"{one} Name the background as a class, too: classes=('background', '{classes[0]}') "
            "with the labels 0 and 1, without reduce_zero_label.",
        ),
        # A few test images may contain no other class, so there it is only a warning.
        (seen == {0, ignored} or (seen == {0} and not dataset.test_mode), f"{one} {binary}"),
    )
    if seen == {0}:
        _logger.warning("%s %s", one, binary)


def _labels_in_maps(dataset: Any, loader: Any) -> tuple[set[int], Plain]:
    """Return the labels that occur in the maps of :func:`check_label_maps`, and the last map's
    info."""
    ignored = dataset.ignore_index
    seen: set[int] = set()
    info: Plain = {}
    spread = evenly(len(dataset), 100)
    order = dict.fromkeys([*spread, *range(len(dataset))])
    for place, index in enumerate(order):
        if place >= len(spread) and not seen <= {0, ignored}:
            break
        info = dataset.get_data_info(index)
        loader.transform(info)
        _check_palette(info["seg_map_path"], dataset)
        seen.update(np.unique(info["gt_seg_map"]).tolist())
        if len(seen - {ignored}) > 1:
            break
    return seen, info


def _check_palette(path: str, dataset: Any) -> None:
    """Raise an error if a label map's own palette, whose colours are all those of classes, has them
    in another order."""
    partial = dataset.label_map and not dataset.whole_palette
    if not dataset.mask_palette or dataset.rgb_masks or partial:
        return
    colours = [tuple(colour) for colour in dataset.mask_palette]
    own = label_palette(path)
    own.pop(dataset.ignore_index, None)
    shift = int(dataset.reduce_zero_label)
    if shift:
        own.pop(0, None)
    wrong = [label for label in own if own[label] not in colours[label - shift :][:1]]
    # A single difference may be a coincidence.
    if len(wrong) > 1 and set(own.values()) <= set(colours):
        colour = own[wrong[0]]
        raise HypvisionError(
            f"The label map '{path}' has the colour {colour} for its label {wrong[0]}, which the "
            f"data set gives to the label {colours.index(colour) + shift}: its classes are in "
            "another order. Give classes and palette in the order of the files, or set "
            "rgb_masks=True to go by the colours."
        )


RUN_HOOKS.append("CheckSamplesHook")


@HOOKS.register_module()
class CheckSamplesHook(DatasetHook):
    """Checks the data of mmseg and mmdet: before the first batch the classes against the model's,
    then each sample."""

    def check(self, runner: Runner, dataset: Any) -> None:
        model = network_of(runner)
        for leaf in _leaves(dataset):
            classes = leaf.metainfo.get("classes")
            fixed = classes is not None and has_fixed_classes(model, leaf)
            place = getattr(leaf, "data_root", None) or getattr(leaf, "ann_file", "")
            for head in class_heads(model) if fixed else ():
                named = getattr(head, "class_names", None)
                refuse(
                    (
                        head.num_classes != len(classes),
                        f"The data in '{place}' ({type(leaf).__name__}) has {len(classes)} "
                        f"classes, but the {type(head).__name__} of the model predicts "
                        f"{head.num_classes}. Set num_classes of the head in the config to "
                        f"{len(classes)}, or the classes of the data (metainfo) to those of the "
                        "model.",
                    ),
                    (
                        named not in (None, tuple(classes)),
                        f"The class tree of the {type(head).__name__} is for the classes "
                        f"{some(named or ())}, but those of the data in '{place}' are "
                        f"{some(classes)}. Give the head the classes of the data, in their order.",
                    ),
                )
            if not isinstance(leaf.pipeline, CheckedPipeline):
                check_label_maps(leaf)
        watch_samples(dataset)
