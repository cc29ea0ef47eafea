"""Segmentation data sets for mmseg's registry. Importing this module imports mmseg.

These data sets and mmseg's own find images as :func:`hypvision.data.label_maps.find_pairs` does,
count them, and read label maps with :class:`LoadLabelMap`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from functools import wraps
from typing import Any

from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import DATASETS, TRANSFORMS

from hypvision.data.annotations import check_names
from hypvision.data.classes import check_classes
from hypvision.data.label_maps import find_pairs, labels_of
from hypvision.data.usage import Usage
from hypvision.io import HypvisionError, Plain, did_you_mean, one_of
from hypvision.io.files import inside, read_lines
from hypvision.openmmlab.images import tell_depth

# Changes of mmseg's own data sets
# ---------------------------------------------------------------------------------

_init = BaseSegDataset.__init__
_full_init = BaseSegDataset.full_init
_load_data_list = BaseSegDataset.load_data_list


@wraps(_init)
def _init_with_colours(
    self: Any,
    *args: Any,
    rgb_masks: bool | str = False,
    mask_palette: Sequence | None = None,
    **kwargs: Any,
) -> None:
    """Initialise a data set as mmseg does, with two more arguments.

    Args:
        rgb_masks: whether colours in the label maps stand for the classes, by the palette of
            ``metainfo``. True: other colours are errors; ``"ignore"``: pixels of other colours are
            ignored.
        mask_palette: colours of the labels in the files, where they are not those of ``metainfo``.
    """
    one_of((False, True, "ignore"), rgb_masks=rgb_masks)
    metainfo = kwargs.get("metainfo") or {}
    _check_classes_given(metainfo.get("classes"), type(self).METAINFO.get("classes"))
    # These are the colours of the labels in the files. If the data set selects some classes,
    # colours given with them are those of the selected classes.
    self.mask_palette = mask_palette
    self.rgb_masks = rgb_masks
    self.whole_palette = True
    if mask_palette is None:
        self.whole_palette = metainfo.get("palette") is None
        self.mask_palette = (
            type(self).METAINFO.get("palette") if self.whole_palette else metainfo["palette"]
        )
    _init(self, *args, **kwargs)


def _check_classes_given(classes: Any, known: Sequence[str] | None) -> None:
    """Raise an error for class names of a config that are wrong or unknown to the data set; None
    means all of the data set's own."""
    if isinstance(classes, str) and os.path.isfile(classes):
        return
    check_names(classes)
    names = check_classes(
        enumerate(classes or ()), "The list of classes of the data set", "Correct metainfo."
    )
    if known is None:
        return
    unknown = [name for name in names.values() if name not in known]
    if unknown:
        raise HypvisionError(
            f"The data set has no class {unknown[0]!r}.{did_you_mean(unknown[0], known)} It has: "
            f"{', '.join(known)}. Give some of these, or take type='BaseSegDataset' for classes of "
            "your own."
        )


def _colours(self: Any) -> Plain | None:
    """Return how :class:`LoadLabelMap` reads coloured masks; None if numbers are the labels."""
    if not self.rgb_masks:
        return None
    colours = [tuple(colour) for colour in self.mask_palette or ()]
    classes = self.metainfo["classes"]
    wanted = len(self.label_map) if self.label_map and self.whole_palette else len(classes)
    if len(colours) != wanted or len(set(colours)) < wanted:
        raise HypvisionError(
            f"rgb_masks needs one colour for each of the {wanted} classes, all different; the "
            f"palette has {len(colours)}, {len(set(colours))} of them different. Set "
            "metainfo=dict(classes=(...), palette=[(0, 0, 0), (255, 0, 0), ...]) in the data set, "
            "in the order of the classes."
        )
    black = [(0, 0, 0)] if self.reduce_zero_label and (0, 0, 0) not in colours else []
    return dict(palette=colours, ignored=black, strict=self.rgb_masks is True)


def _is_default(self: Any, option: str) -> bool:
    """Return whether an option of the data set has the default value of its class."""
    for cls in type(self).__mro__:
        init = vars(cls).get("__init__")
        known = {} if init is None else inspect.signature(init).parameters
        if option in known:
            return known[option].default == getattr(self, option)
    return False


def _load_pairs(self: Any) -> list[Plain]:
    """List the images as mmseg does, but ignore the case of suffixes, and accept all image formats
    if no suffix is given."""
    if self.backend_args:  # mmseg lists files in a remote store
        return _load_data_list(self)
    images, maps = (self.data_prefix.get(key) for key in ("img_path", "seg_map_path"))
    listed = self.ann_file and not os.path.isdir(self.ann_file)
    self.usage = Usage(self.ann_file if listed else images)
    pairs = find_pairs(
        images, maps, self.usage, (self.img_suffix, self.seg_map_suffix),
        exact=(not _is_default(self, "img_suffix"), not _is_default(self, "seg_map_suffix")),
        names=read_lines(self.ann_file, "the list of images") if listed else None,
    )  # fmt: skip
    common = dict(reduce_zero_label=self.reduce_zero_label, label_map=self.label_map)
    colours = _colours(self)
    if colours:
        common.update(colours=colours, label_map=self.label_map if self.whole_palette else None)
        common["colours"]["ignore_index"] = self.ignore_index
    found = []
    for image, label_map in pairs:
        found.append(dict(common, img_path=image, seg_fields=[]))
        if label_map:
            found[-1]["seg_map_path"] = label_map
    return found


def _full_init_counted(self: Any) -> None:
    """Initialise a data set as mmseg does, and also count the images of those that list them
    themselves."""
    fresh = not self._fully_initialized
    _full_init(self)
    if not hasattr(self, "usage"):
        _count(self)
    self.usage.used["images"] = len(self)  # those at the indices, if there are some
    if fresh and not self.backend_args:
        paths = [self.get_data_info(index)["img_path"] for index in range(len(self))]
        tell_depth(self.pipeline.transforms, paths, self.usage)


def _count(data: Any) -> None:
    """Count the images of a data set, and raise an error for a file outside of its folders."""
    data.usage = Usage(data.data_root or type(data).__name__)
    data.usage.use("images", len(data))
    items = [data.get_data_info(index) for index in range(len(data))]
    named = [path for item in items for key, path in item.items() if path and key.endswith("_path")]
    inside(named, data.data_root or "", *filter(None, data.data_prefix.values()))


BaseSegDataset.__init__ = _init_with_colours
BaseSegDataset.load_data_list = _load_pairs
BaseSegDataset.full_init = _full_init_counted


@TRANSFORMS.register_module(name="LoadAnnotations", force=True)
class LoadLabelMap(LoadAnnotations):
    """Load label maps by :func:`~hypvision.data.label_maps.labels_of`.

    mmseg's reader cuts numbers to 8 bits; it is used only if the config asks for tifffile, or for
    files in a remote store.
    """

    last_is_ignored = True

    def _load_seg_map(self, results: Plain) -> None:
        # An image of mmseg.apis.inference_model has neither a label map nor fields of a data set.
        if not {"seg_map_path", "seg_fields"} & results.keys():
            return
        if self.backend_args or self.imdecode_backend == "tifffile":
            super()._load_seg_map(results)
            return
        reduce = (
            results.get("reduce_zero_label")
            if self.reduce_zero_label is None
            else self.reduce_zero_label
        )
        labels = labels_of({**results, "reduce_zero_label": reduce}, self.last_is_ignored)
        # With Pillow, mmcv can resize only maps of 8 bits, so labels that fit get 8 bits.
        narrow = labels.min(initial=0) >= 0 and labels.max(initial=0) <= 255
        results["gt_seg_map"] = labels.astype("uint8") if narrow else labels
        results["seg_fields"].append("gt_seg_map")


# Data sets that mmseg does not have
# --------------------------------------------------------------------------------------------------

_CAMVID = {
    "Sky": (128, 128, 128), "Building": (128, 0, 0), "Pole": (192, 192, 128),
    "Road": (128, 64, 128), "Pavement": (60, 40, 222), "Tree": (128, 128, 0),
    "SignSymbol": (192, 128, 128), "Fence": (64, 64, 128), "Car": (64, 0, 128),
    "Pedestrian": (64, 64, 0), "Bicyclist": (0, 128, 192), "Void": (0, 0, 0),
}  # fmt: skip


@DATASETS.register_module()
class CamVidDataset(BaseSegDataset):
    """CamVid (Brostow et al., 2008) with SegNet's 11 classes; label 11 is void and ignored.

    Layout: ``img/SPLIT/NAME.jpg`` and ``ann/SPLIT/NAME.png`` below ``data_root``.
    """

    METAINFO = dict(classes=tuple(_CAMVID), palette=[list(colour) for colour in _CAMVID.values()])

    def __init__(self, img_suffix: str = ".jpg", seg_map_suffix: str = ".png", **kwargs):
        # These are METAINFO's classes without void: mmseg maps the rest to the ignored label 255.
        kwargs.setdefault("metainfo", dict(classes=tuple(_CAMVID)[:-1]))
        super().__init__(
            img_suffix=img_suffix, seg_map_suffix=seg_map_suffix, reduce_zero_label=False, **kwargs
        )
