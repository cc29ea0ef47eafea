"""How much features look like a tree, and the curvature that this suggests (Khrulkov et al., CVPR
2020; Ermolov et al., "Hyperbolic Vision Transformers", CVPR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from hypvision.io import ArgumentError, at_least

OF_THE_BALL = 0.144  # the relative hyperbolicity of the unit ball with c = 1


def relative_hyperbolicity(distances: Tensor) -> float:
    r"""Return Gromov's :math:`2 \delta / \text{diameter}` of points with the given ``distances``
    ``(N, N)``: 0 for a tree, at most 1.

    :math:`\delta` is the largest
    :math:`\min((x|y), (y|z)) - (x|z)` of the Gromov products :math:`(x|y)` seen from the first
    point.
    """
    if distances.dim() != 2 or distances.shape[0] != distances.shape[1] or len(distances) < 2:
        raise ArgumentError(
            "relative_hyperbolicity: distances must be a matrix (N, N) of at least 2 points, got "
            f"{tuple(distances.shape)}."
        )
    d = distances.double()
    products = (d[:1] + d[:, :1] - d) / 2
    delta = d.new_zeros(())
    for row in products:  # a row of the max-min product at a time
        through = torch.minimum(row.unsqueeze(1), products).amax(0)
        delta = torch.maximum(delta, (through - row).amax())
    return float(2 * delta / d.amax())


def fitted_curvature(
    features: Tensor, count: int = 2000, rounds: int = 100, seed: int = 0
) -> float:
    """Return the curvature ``c`` of the ball that fits encoder outputs ``(N, n)``.

    It is ``(0.144 / h)^2`` for the mean ``h`` of the relative hyperbolicities of Euclidean
    distances between ``count`` of the features, drawn in each of the ``rounds``.

    Raises:
        HypvisionError: the features are a tree (``h`` is 0), or fewer than two.
    """
    at_least(2, integer=True, count=count)
    at_least(1, integer=True, rounds=rounds)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(rounds):
        drawn = features[torch.randperm(len(features), generator=generator)[:count]].double()
        found.append(relative_hyperbolicity(torch.cdist(drawn, drawn)))
    mean = sum(found) / rounds
    if not mean > 0:
        raise ArgumentError(
            f"fitted_curvature: the features have the hyperbolicity {mean}, so that no curvature "
            "fits. Give features that differ, of more than two images."
        )
    return (OF_THE_BALL / mean) ** 2
