"""The classification head of Lorentz networks: logits are distances from hyperplanes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.geometry.lorentz.cones import space_logits

from .checks import check_features, check_manifold, check_sizes


class LorentzMLR(nn.Module):
    r"""Lorentz multinomial logistic regression (Bdeir et al., ICLR 2024, eq. 11).

    .. math:: v_k = \tfrac{|z_k|}{\sqrt c}\,\mathrm{asinh}\left(\sqrt c\,
              (\cosh(\sqrt c a_k)\, s \cdot \hat z_k - \sinh(\sqrt c a_k)\, t)\right)

    Args:
        in_features: space dimension ``n``.
        num_classes: number of hyperplanes ``K``.
        manifold: the hyperboloid of the points.

    Attributes:
        a: offsets ``(K,)`` of the hyperplanes from the origin.
        z: normals ``(K, n)`` of the hyperplanes. Both start uniform in +-1/sqrt(n), as published.

    Shapes:
        space parts ``(..., n)`` to logits ``(..., K)``, which are float32 also under autocast.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: Lorentz,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_features=in_features, num_classes=num_classes)
        self.in_features = in_features
        self.num_classes = num_classes
        self.manifold = manifold
        self.a = nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype))
        self.z = nn.Parameter(torch.empty(num_classes, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise offsets and normals uniformly in +-1/sqrt(n)."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.a, -bound, bound)
        nn.init.uniform_(self.z, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        return space_logits(x, self.z, self.a, self.manifold.c)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}"
