"""What a model groups together in an image, whichever of the models here it is."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import nn

from hypvision.viz.clusters import explain_image
from hypvision.viz.hierarchy_tree import explain_hierarchy


def explain(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    regions: int = 8,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    stage: int | None = None,
    block: int | None = None,
    head: int | None = None,
    level: str = "both",
) -> dict[str, Image.Image]:
    """The tree of parts of a Hi-Mapper (:func:`~hypvision.viz.explain_hierarchy`), or the clusters of an HCFormer
    (:func:`~hypvision.viz.explain_image`, which has the arguments and errors)."""
    if hasattr(model, "forward_with_hierarchy"):
        return explain_hierarchy(model, image, size, mean, std)
    return explain_image(model, image, size, regions, mean, std, stage, block, head, level)
