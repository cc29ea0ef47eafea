"""Layers of Busemann functions, which say how far a point lies towards an ideal point (Chen,
Schoelkopf, Sebe, CVPR 2026, arXiv 2602.18858)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz, PoincareBall, lorentz
from hypvision.geometry.lorentz.cones import space_busemann
from hypvision.geometry.numerics import clamped, exact
from hypvision.io import Plain

from .checks import check_features, check_manifold, check_sizes
from .functional import precise
from .transition import ToLorentz

LONGEST = 40.0  # largest coordinate of a result, in radii of curvature, before sinh


class BusemannMLR(nn.Module):
    r"""Multinomial logistic regression by Busemann functions of ideal points.

    .. math:: v_k = b_k - e^{g_k} B_{w_k / |w_k|}(x)

    On the ball too the logits are computed on the hyperboloid, where distant points keep their
    digits.

    Args:
        in_features: dimension ``n``.
        num_classes: number of ideal points ``K``.
        manifold: the hyperboloid or the ball of the points.

    Attributes:
        weight_v: directions ``w`` of the ideal points ``(K, n)``, at first normally distributed
            with the variance ``1 / n``.
        weight_g: logarithms ``g`` of the factors ``(K,)``, at first those of the lengths of ``w``.
        bias: the numbers ``b`` ``(K,)``, at first 0.

    Shapes:
        space parts (of the ball: points) ``(..., n)`` to logits ``(..., K)``, float32 also under
        autocast.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: Lorentz | PoincareBall,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if not isinstance(manifold, PoincareBall):
            check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_features=in_features, num_classes=num_classes)
        factory: Plain = {"device": device, "dtype": dtype}
        self.in_features = in_features
        self.num_classes = num_classes
        self.manifold = manifold
        self.weight_v = nn.Parameter(torch.empty(num_classes, in_features, **factory))
        self.weight_g = nn.Parameter(torch.empty(num_classes, **factory))
        self.bias = nn.Parameter(torch.empty(num_classes, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise directions, factors and biases as published."""
        self._reset(self.in_features**-0.5)

    @torch.no_grad()
    def _reset(self, std: float) -> None:
        nn.init.normal_(self.weight_v, std=std)
        self.weight_g.copy_(self.weight_v.norm(dim=-1).log())
        self.bias.zero_()

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits ``(..., K)`` of space parts or of points of the ball."""
        check_features(self, x, self.in_features)
        with exact(x.device):
            space = precise(x)
            if isinstance(self.manifold, PoincareBall):
                space = self.manifold.to_lorentz(space)[..., 1:]
            towards = space_busemann(space, self.weight_v, self.manifold.c)
            return self.bias - self.weight_g.exp() * towards

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}"


class BusemannLinear(BusemannMLR):
    r"""Fully connected layer whose coordinates are the logits of :class:`BusemannMLR`.

    .. math:: s_j = \tfrac{1}{\sqrt c} \sinh(\sqrt c\, \varphi(v_j)), \qquad
              y = \exp_0(b) \oplus (\sqrt{1/c + |s|^2}, s)

    With its published initialisation radii shrink by ``sqrt(2 n)`` from layer to layer: add a norm
    layer, such as :class:`LorentzBatchNorm1d`, where several follow each other.

    Args:
        in_features, out_features: dimensions ``n`` and ``m``.
        manifold: the hyperboloid or the ball of the points.
        activation: the function of the logits; None for none.
        translation: whether the result is moved by ``exp_0(b)``, with ``b`` learned.

    Attributes:
        weight_v, weight_g, bias: see :class:`BusemannMLR`; the variance is ``1 / (2 n m)``.
        shift: the tangent vector ``b`` ``(m,)``, at first 0.

    Shapes:
        space parts (of the ball: points) ``(..., n)`` to such ``(..., m)``.
    """

    shift: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Lorentz | PoincareBall,
        activation: nn.Module | None = None,
        translation: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_features, out_features, manifold, device, dtype)
        self.activation = nn.Identity() if activation is None else activation
        self.shift = None
        if translation:
            self.shift = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Initialise all parameters as published."""
        self._reset((2 * self.in_features * self.num_classes) ** -0.5)
        shift = getattr(self, "shift", None)
        if shift is not None:
            nn.init.zeros_(shift)

    def forward(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        with exact(x.device):
            heights = clamped(self.activation(self.logits(x)) * c**0.5, -LONGEST, LONGEST)
            points = lorentz.from_space(torch.sinh(heights) / c**0.5, c)
            if self.shift is not None:
                points = lorentz.boost(self._moved_origin(self.shift), points, c)
            if isinstance(self.manifold, PoincareBall):
                return self.manifold.from_lorentz(points).to(x.dtype)
            return points[..., 1:].to(x.dtype)

    def _moved_origin(self, shift: Tensor) -> Tensor:
        """Return ``exp_0`` of a tangent vector; at the ball's origin it is half as long as the same
        one of the hyperboloid."""
        longer = 2 if isinstance(self.manifold, PoincareBall) else 1
        return lorentz.expmap0(longer * precise(shift), self.manifold.c)


class BusemannHead(nn.Sequential):
    """Classifier's head on Euclidean features ``(B, n)``: they are cut to the length ``clip``,
    mapped to the hyperboloid by the exponential map at the origin, and classified by
    :class:`BusemannMLR`.

    Args:
        in_features, num_classes: see :class:`BusemannMLR`.
        c: curvature of the hyperboloid.
        clip: largest length of the features.
    """

    def __init__(self, in_features: int, num_classes: int, c: float = 1.0, clip: float = 1.0):
        manifold = Lorentz(c)
        mlr = BusemannMLR(in_features, num_classes, manifold)
        super().__init__(ToLorentz(manifold, clip=clip), mlr)
