r"""The attribute-aware text refiner of LatHAdapter: one step of graph convolution over classes and attributes.

With the nodes :math:`F = [T; A]`, their cosines :math:`S` and the degrees :math:`D`,

.. math:: \hat F = F + \beta\, D^{-1/2} S D^{-1/2} F,

and only the rows of the classes are returned. A degree is a sum of cosines, which can be negative for random
attributes; its root is then undefined. ``degree="abs"`` sums absolute values, so that :math:`D \ge 1` (a node's cosine
with itself is 1) and the matrix has a spectral norm of at most 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST = 1e-6  # least degree of a node with degree="clamp"


def refine(text: Tensor, attributes: Tensor, beta: float = 0.1, degree: str = "abs") -> Tensor:
    """Refined class features (..., C, d), not normalised, of features (..., C, d) and attributes (N, d); the degree is
    ``"abs"``, ``"relu"`` or ``"clamp"``, see :class:`.config.LatHAdapterConfig`."""
    count = text.shape[-2]
    nodes = torch.cat([text, attributes.expand(*text.shape[:-2], -1, -1)], dim=-2)
    unit = F.normalize(nodes, dim=-1)
    cosines = unit[..., :count, :] @ unit.mT  # only the rows of classes
    if degree == "clamp":  # sum of inner products = inner product with the sum
        degrees = (unit @ unit.sum(-2)[..., None])[..., 0].clamp(min=_LEAST)
    else:
        of_attributes = unit[..., count:, :] @ unit.mT
        if degree == "relu":
            cosines, of_attributes = cosines.clamp(min=0), of_attributes.clamp(min=0)
        degrees = torch.cat([cosines.abs().sum(-1), of_attributes.abs().sum(-1)], dim=-1)
    scale = degrees.rsqrt()[..., None]
    return text + beta * scale[..., :count, :] * (cosines @ (scale * nodes))
