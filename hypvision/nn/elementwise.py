"""Euclidean modules applied to points of a manifold."""

from __future__ import annotations

from torch import Tensor, nn

from hypvision.geometry import Lorentz, Manifold

from .checks import check_features, check_manifold


class OnSpace(nn.Module):
    """Apply a Euclidean module to the space part of points ``(..., n + 1)``; the time is computed
    anew.

    The activations, dropout and norms of Lorentz networks work in this way (Bdeir et al., ICLR
    2024; Yang et al., KDD 2024). Inside a network, where features are space parts already, the
    module alone has the same effect.
    """

    def __init__(self, module: nn.Module, manifold: Lorentz):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        self.module = module
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x)
        return self.manifold.from_space(self.module(x[..., 1:]))


class OnTangent(nn.Module):
    r"""Apply a Euclidean module ``f`` in the tangent space at the origin, of either model:
    :math:`\exp_0 \circ f \circ \log_0`."""

    def __init__(self, module: nn.Module, manifold: Manifold):
        super().__init__()
        check_manifold(self, Manifold, manifold=manifold)
        self.module = module
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x)
        return self.manifold.expmap0(self.module(self.manifold.logmap0(x)))
