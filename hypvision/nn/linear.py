"""The linear layer on the hyperboloid, and initialisations of its weight."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import clamped
from hypvision.io import ArgumentError, Plain, at_least, between, more_than, one_of

from .checks import check_features, check_manifold, check_sizes
from .functional import space_square, timed


@torch.no_grad()
def isometric_(weight: Tensor) -> None:
    """Fill a weight with orthonormal rows or columns, scaled so that the map keeps the mean squared
    norm.

    An expanding map keeps every norm; a reducing map keeps it on average. A stack of such maps
    neither shrinks nor grows radii.
    """
    rows, columns = weight.shape
    precise = torch.empty(
        rows, columns, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device
    )
    nn.init.orthogonal_(precise, gain=max(1.0, columns / rows) ** 0.5)
    weight.copy_(precise)


@torch.no_grad()
def equal_rows_(weight: Tensor, length: float) -> None:
    """Fill a weight with rows of equal ``length``, as orthogonal as possible, so that the map
    multiplies the spread of coordinates by ``length``."""
    isometric_(weight)
    weight.mul_(length / torch.linalg.vector_norm(weight, dim=1, keepdim=True))


def timed_linear(
    space: Tensor, time: Tensor, weight: Tensor, time_weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return ``W_s s + w_t t + b`` ``(..., m)`` of space parts ``s`` ``(..., n)`` and times ``t``
    ``(..., 1)``."""
    out = F.linear(space.to(weight.dtype), weight, bias)
    column = time.to(out.dtype).reshape(-1, 1)
    row = time_weight.to(out.dtype).unsqueeze(0)
    return torch.addmm(out.reshape(-1, row.shape[1]), column, row).reshape(out.shape)


class SharedLinear(nn.Linear):
    """A linear layer whose weight is read by other code, which joins it with another layer's or
    scales it, instead of calling the layer.

    Its own type protects it from tools that replace every ``nn.Linear`` by a layer without such a
    weight, like :func:`torch.ao.quantization.quantize_dynamic`.
    """


class LorentzLinear(nn.Module):
    r"""Fully connected layer on the hyperboloid: the space part is a linear map of time and space
    part.

    .. math:: s' = W_s s + w_t t + b, \qquad t' = \sqrt{|s'|^2 + 1/c}

    This is the layer of fully hyperbolic CNNs (Bdeir et al., ICLR 2024; after Chen et al., ACL
    2022), but without the row of weights that it computes and never uses, and the layer of
    Hypformer (Yang et al., KDD 2024).

    Args:
        in_features, out_features: space dimensions of input and result.
        manifold: the hyperboloid of the input.
        normalize: what sets the size of the result, while the linear map sets its direction. False:
            the map sets it, too. True: the norm of the space part is
            ``sigmoid(w_0 . x + b_0) exp(scale)`` (Bdeir et al.). ``"time"``: the time is
            ``sigmoid(w_0 . x + b_0) exp(scale) + 1/sqrt(c) + margin`` (Chen et al., "Fully
            Hyperbolic Neural Networks").
        scale: initial ``scale``; it is learned if ``learn_scale``, which needs ``normalize``.
            Published are 2.3, fixed, and for ``"time"`` ``log(10)``, learned.
        margin: the number in the formula of ``normalize="time"``; 0.1 as published for c = 1, 0.5
            in HyperCore.
        init: ``"isometric"`` keeps the radius, so that stacks of any depth start with radii in
            range (orthonormal rows or columns, scaled where the dimension falls; time column 0).
            The others are published: ``"uniform"`` (+-0.02) by Bdeir et al., under which radii
            shrink to 0.05 within a few layers; ``"xavier"`` (gain sqrt 2) by Hypformer, under which
            they grow; ``"torch"`` (as ``nn.Linear``, biases too) by the attention of HyperCore's
            LViT; ``"orthogonal"`` (as ``"isometric"``, but not scaled) by LHIER+.
        manifold_out: the hyperboloid of the result, if its curvature differs; the result is then
            scaled by ``sqrt(c / c_out)``.
        activation: a module between the linear map and what sets the size, e.g. an activation or a
            dropout; None for none.
        heads: into how many points the result is split, before its size is set; those of
            ``normalize="time"`` share their time (HexFormer, arXiv 2601.19849, with
            ``margin=0.5``).

    Shapes:
        space parts ``(..., in_features)`` to ``(..., out_features)``, or of several heads
        ``(..., heads, out_features / heads)``.
    """

    norm_bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Lorentz,
        bias: bool = True,
        normalize: bool | str = False,
        scale: float = 2.3,
        learn_scale: bool = False,
        init: str = "isometric",
        manifold_out: Lorentz | None = None,
        margin: float = 0.1,
        activation: nn.Module | None = None,
        heads: int = 1,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(
            self,
            Lorentz,
            manifold=manifold,
            manifold_out=manifold if manifold_out is None else manifold_out,
        )
        check_sizes(self, in_features=in_features, out_features=out_features)
        one_of(("isometric", "uniform", "xavier", "torch", "orthogonal"), init=init)
        one_of((False, True, "time"), normalize=normalize)
        at_least(1, integer=True, heads=heads)
        if out_features % heads:
            raise ArgumentError(
                f"LorentzLinear: out_features must be a multiple of heads={heads}, got "
                f"{out_features}."
            )
        between(-80, 80, scale=scale)  # keeps exp(scale) finite
        more_than(0, margin=margin)
        if learn_scale and not normalize:
            raise ArgumentError(
                "LorentzLinear: learn_scale=True is for the scale of normalize=True or 'time', and "
                "normalize=False has no scale. Give one of these values, or leave learn_scale out."
            )
        factory: Plain = {"device": device, "dtype": dtype}
        self.in_features = in_features
        self.out_features = out_features
        self.init = init
        self.manifold = manifold
        self.manifold_out = manifold_out
        self.activation = activation
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(out_features, in_features, **factory))
        self.time_weight = nn.Parameter(torch.empty(out_features, **factory))
        self.bias = nn.Parameter(torch.empty(out_features, **factory)) if bias else None
        self.normalize = normalize
        self.margin = margin
        self.scale_init = scale
        if normalize:
            self.norm_weight = nn.Parameter(torch.empty(in_features + 1, **factory))
            self.norm_bias = nn.Parameter(torch.empty(1, **factory)) if bias else None
            self.scale = nn.Parameter(torch.empty((), **factory), requires_grad=learn_scale)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weights as ``init`` says, biases with 0 but for ``"torch"``, and ``scale``
        with its initial value."""
        bound = (self.in_features + 1) ** -0.5 if self.init == "torch" else 0.02
        if self.init in ("uniform", "torch"):
            self.weight.uniform_(-bound, bound)
            self.time_weight.uniform_(-bound, bound)
        elif self.init == "xavier":
            both = torch.empty(self.out_features, self.in_features + 1)
            nn.init.xavier_uniform_(both, gain=math.sqrt(2))
            self.time_weight.copy_(both[:, 0])
            self.weight.copy_(both[:, 1:])
        else:
            isometric_(self.weight)
            if self.init == "orthogonal" and self.in_features > self.out_features:
                self.weight.mul_((self.out_features / self.in_features) ** 0.5)
            self.time_weight.zero_()
        if self.normalize:
            self.norm_weight.uniform_(-0.02, 0.02)
            self.scale.fill_(self.scale_init)
            if self.norm_bias is not None:
                self.norm_bias.zero_()
        if self.bias is not None:
            self.bias.zero_()
            if self.init == "torch":
                self.bias.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        x, time = timed(x, self.manifold.c)
        out = timed_linear(x, time, self.weight, self.time_weight, self.bias)
        if self.activation is not None:
            out = self.activation(out)
        if self.heads > 1:
            out = out.unflatten(-1, (self.heads, -1))
        if self.normalize:
            out = self._normalized(x, time, out)
        if self.manifold_out is not None:
            out = out * ((self.manifold.c / self.manifold_out.c) ** 0.5)
        return out

    def _normalized(self, x: Tensor, time: Tensor, out: Tensor) -> Tensor:
        gate = F.linear(x.to(time.dtype), self.norm_weight[1:].unsqueeze(0).to(time.dtype))
        gate = gate + time * self.norm_weight[0]
        if self.norm_bias is not None:
            gate = gate + self.norm_bias
        if self.heads > 1:
            gate = gate.unsqueeze(-2)
        size = space_square(out)
        wanted = torch.sigmoid(gate) * self.scale.exp()
        if self.normalize == "time":
            c = self.manifold.c
            rise = wanted + self.margin  # time minus the time of the origin
            # The clamp is the published one.
            factor = torch.sqrt(rise * (rise + 2 / c**0.5) / clamped(size, 1e-8))
        else:  # as published, vectors near 0 become the origin
            factor = torch.where(size > 1e-10, wanted / torch.sqrt(clamped(size, 1e-10)), 0.0)
        return out * factor.to(out.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, "
            f"normalize={self.normalize}"
        )
