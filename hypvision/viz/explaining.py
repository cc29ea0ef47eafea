"""Drawings of what a model groups together in an image, for all models that can be explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import nn

from hypvision.viz.clusters import explain_image
from hypvision.viz.hierarchy_tree import explain_hierarchy


def explain(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **clusters: Any,
) -> dict[str, Image.Image]:
    """The tree of parts of a Hi-Mapper (:func:`~hypvision.viz.explain_hierarchy`), or the clusters of an HCFormer
    (:func:`~hypvision.viz.explain_image`), with their arguments and errors; ``clusters``: of the latter alone."""
    if hasattr(model, "forward_with_hierarchy"):
        return explain_hierarchy(model, image, size, mean, std)
    return explain_image(model, image, size, mean=mean, std=std, **clusters)
