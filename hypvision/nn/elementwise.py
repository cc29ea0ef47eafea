"""Euclidean operations on hyperbolic features."""

from __future__ import annotations

from torch import Tensor, nn

from hypvision.geometry import Lorentz, Manifold

from .checks import check_features, check_manifold

__all__ = ["OnSpace", "OnTangent"]


class OnSpace(nn.Module):
    """A Euclidean module on the space part of points of the hyperboloid; time is computed anew.

    Activations, dropout and norms of Lorentz networks are this (Bdeir et al., ICLR 2024; Yang et al., KDD 2024). Inside
    a network, where features are space parts already, the module alone does the same.

    Args:
        module: a module on ``(..., n)``.
        manifold: the hyperboloid.

    Shapes:
        points ``(..., n + 1)`` to ``(..., m + 1)``.

    Raises:
        TypeError: the manifold is not a hyperboloid, or the points are not floating point.
    """

    def __init__(self, module: nn.Module, manifold: Lorentz):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        self.module, self.manifold = module, manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x)
        return self.manifold.from_space(self.module(x[..., 1:]))


class OnTangent(nn.Module):
    r"""A Euclidean module in the tangent space at the origin: :math:`\exp_0 \circ f \circ \log_0`.

    Args:
        module: a module on ``(..., n)``.
        manifold: the hyperboloid or the ball, of points ``(..., n + 1)`` or ``(..., n)``.

    Raises:
        TypeError: ``manifold`` is none, or the points are not floating point.
    """

    def __init__(self, module: nn.Module, manifold: Manifold):
        super().__init__()
        check_manifold(self, manifold, Manifold)
        self.module, self.manifold = module, manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x)
        return self.manifold.expmap0(self.module(self.manifold.logmap0(x)))
