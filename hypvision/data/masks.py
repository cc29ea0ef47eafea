"""Masks of objects: their bounding boxes, and conversion to and from COCO's run-length encoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from hypvision.io import ensure, require

from .annotations import MASK_FORMAT, mask_fault, whole_size


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the bounding box (left, top, right, bottom) in pixels of a mask (H, W) that is not
    empty; ``right`` and ``bottom`` are one past the last pixel."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def run_length(mask: np.ndarray) -> dict[str, list[int]]:
    """Return a boolean mask ``(H, W)`` in COCO's uncompressed run-length encoding: lengths of runs
    of equal pixels, down the columns, of which the first is of zeros."""
    pixels = np.asarray(mask, dtype=bool).ravel(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[False], pixels, [not pixels[-1]]])))
    return {"size": list(mask.shape), "counts": np.diff(edges, prepend=0).tolist()}


def decode(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return the pixels, bool (H, W), of a mask in COCO's form: polygons, which are drawn at
    ``height`` x ``width``, or run lengths, which carry their own size, which may differ from these
    two."""
    masks: Any = require("pycocotools.mask", "mm")
    if not isinstance(segmentation, list):
        # pycocotools reads beyond the end of run lengths, and takes memory for any size
        own = segmentation["size"]
        fault = mask_fault(segmentation, *own) if whole_size(*own) else f"has the size {own}"
        ensure(not fault, f"A mask {fault}. {MASK_FORMAT}")
    if isinstance(segmentation, list):
        segmentation = masks.merge(masks.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        segmentation = masks.frPyObjects(segmentation, height, width)
    return masks.decode(segmentation).astype(bool)
