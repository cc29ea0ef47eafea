"""Multinomial logistic regressions (MLR) of other code bases, in hyperbolic space."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz, PoincareBall, lorentz, poincare
from hypvision.geometry.numerics import exact
from hypvision.io import Plain, one_of
from hypvision.nn.checks import check_features, check_manifold, check_sizes
from hypvision.nn.functional import precise, space_time

from .linear import FGGLinear, Layer


class FGGMLR(FGGLinear):
    r"""Multinomial logistic regression of fast hyperbolic networks (van der Klis et al., 2026).

    .. math:: v_k = \tfrac{1}{\sqrt c}\,\mathrm{asinh}(\sqrt c\,\langle x, V_k\rangle)

    with the hyperplanes ``V`` of :class:`FGGLinear`: here the length of a normal scales the
    argument of asinh, in :class:`LorentzMLR` the distance.

    Args:
        in_features: space dimension ``n``.
        num_classes: number of hyperplanes ``K``.
        init: see :class:`FGGLinear`; ``"mlr"`` is the published one.
        weight_norm: whether lengths and directions of the normals are trained as separate
            parameters.

    Shapes:
        space parts ``(..., n)`` to logits ``(..., K)``, float32 also under autocast.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: Lorentz,
        init: str = "mlr",
        weight_norm: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        check_sizes(self, num_classes=num_classes)
        super().__init__(in_features, num_classes, manifold, None, init, weight_norm, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        with exact(x.device):
            root = self.manifold.c**0.5
            planes = self.planes()
            wide = x.to(planes.dtype)
            out = F.linear(wide, planes[:, 1:]) + space_time(wide, self.manifold.c) * planes[:, 0]
            return torch.asinh(out * root) / root


class LorentzPrototypeHead(nn.Module):
    r"""Hypformer's classifier (Yang et al., KDD 2024; HyperCore): logits by the squared Lorentz
    distances from a point of each class.

    .. math:: d_k = \max(0, -2/c - 2 \langle x, p_k\rangle_L + b_k)

    Args:
        in_features: space dimension ``n``.
        num_classes: number of points ``K``.
        logit: ``"negative"``: ``-d``; ``"inverse"``: ``1 / (1 + d)``; ``"log"``: ``-log(1 + d)``.
        scale: factor of the logits; 10 in HyperCore.

    Attributes:
        points: the space parts ``(K, n)`` of the points, at first normally distributed around the
            origin with the variance ``1 / n``.
        bias: the numbers ``b`` ``(K,)``, at first 0.

    Shapes:
        space parts ``(..., n)`` to logits ``(..., K)``.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: Lorentz,
        logit: str = "negative",
        scale: float = 1.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_features=in_features, num_classes=num_classes)
        one_of(("negative", "inverse", "log"), logit=logit)
        self.in_features = in_features
        self.manifold = manifold
        self.logit = logit
        self.scale = scale
        self.points = nn.Parameter(
            torch.randn(num_classes, in_features, device=device, dtype=dtype) * in_features**-0.5
        )
        self.bias = nn.Parameter(torch.zeros(num_classes, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        with exact(x.device):
            points = self.manifold.from_space(precise(x)).unsqueeze(-2)
            classes = self.manifold.from_space(precise(self.points))
            squares = lorentz.sqdist(points, classes, self.manifold.c)
            apart = torch.relu(squares + self.bias)
            if self.logit == "inverse":
                return self.scale / (1 + apart)
            return -self.scale * (apart if self.logit == "negative" else torch.log1p(apart))


class _MLR(Layer):
    """Base class of the regressions on the ball, each with one initialisation."""

    manifold: PoincareBall

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: PoincareBall,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        check_sizes(self, num_classes=num_classes)
        super().__init__(in_features, num_classes, manifold, False, self.inits[0], device, dtype)
        self.num_classes = num_classes

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}"


class PoincareMLR(_MLR):
    """Unidirectional multinomial logistic regression of HNN++ (Shimizu et al., ICLR 2021, eq. 6).

    Args:
        in_features: dimension ``n``.
        num_classes: number of hyperplanes ``K``.
        bias: whether the hyperplanes have offsets from the origin.

    Attributes:
        g: factors ``(K,)`` of the logits, initially the lengths of the normals.
        v: normals ``(K, n)``, initially normally distributed with variance ``1 / n``.
        r: offsets ``(K,)``, initially 0.

    Shapes:
        points ``(..., n)`` to logits ``(..., K)``.
    """

    inits = ("normal",)
    matrix = "v"
    v: nn.Parameter

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: PoincareBall,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_features, num_classes, manifold, device, dtype)
        self.r.requires_grad_(bias)

    def _add(self, factory: Plain) -> None:
        self.g = nn.Parameter(torch.empty(self.out_features, **factory))
        self.r = nn.Parameter(torch.empty(self.out_features, **factory))

    def _init_weight(self) -> None:
        nn.init.normal_(self.v, std=self.in_features**-0.5)
        self.g.copy_(self.v.norm(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        return poincare.hyperplane_logits(x, self.v, self.r, self.manifold.c, self.g)


class GaneaMLR(_MLR):
    """Multinomial logistic regression of hyperbolic neural networks (Ganea et al., NeurIPS 2018,
    eq. 25).

    Args:
        in_features: dimension ``n``.
        num_classes: number of hyperplanes ``K``.

    Attributes:
        a: normals ``(K, n)`` of the hyperplanes.
        p: tangent vectors at the origin ``(K, n)``; the hyperplanes go through ``exp_0(p)``.

    Shapes:
        points ``(..., n)`` to logits ``(..., K)``; no ``(..., K, n)`` tensor is built.
    """

    inits = ("kaiming",)
    matrix = "a"
    a: nn.Parameter

    def _add(self, factory: Plain) -> None:
        self.p = nn.Parameter(torch.empty_like(self.a))

    def _init_weight(self) -> None:
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        nn.init.kaiming_uniform_(self.p, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        c = self.manifold.c
        return poincare.ganea_logits(x, poincare.expmap0(self.p, c), self.a, c)
