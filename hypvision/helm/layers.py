"""Linear maps, norms, tables and feed-forward layers over the rows of
:mod:`hypvision.helm.rows`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.geometry.numerics import is_autocast

from . import rows
from .config import Architecture


def rounded_up(count: int, multiple: int) -> int:
    """The least multiple that is not below ``count``."""
    return -(-count // multiple) * multiple


class Layout:
    """The positions of coordinates in a row of a point with ``ambient`` coordinates, its time
    included; all of them are space if the geometry is Euclidean.

    Attributes:
        n: slot of the time, or None.
        size: number of space coordinates.
        space, ambient: places of the space coordinates; of all in the published order, time first.
    """

    def __init__(self, ambient: int, config: Architecture):
        self.size = ambient - 1 if config.lorentz else ambient
        self.n = self.size if config.lorentz else None
        self.width = rounded_up(ambient, config.pad)
        self.space = list(range(self.size))
        self.ambient = [*([] if self.n is None else [self.n]), *self.space]


class RowLinear(nn.Linear):
    """A linear map between rows, with zeros where a row has no coordinates: ``live_in`` and
    ``live_out`` are the places of the coordinates, in the published order. Zero rows and columns of
    the weight get zero gradients, and so stay.

    Args:
        init: ``"xavier"``, uniform with gain sqrt(2) and zero bias, or ``"torch"``, that of
            ``nn.Linear``.
        joined: numbers of outputs of the published matrices that this one joins; each is
            initialised by its own shape.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        live_in: Sequence[int],
        live_out: Sequence[int],
        bias: bool = True,
        init: str = "xavier",
        joined: Sequence[int] | None = None,
    ):
        self.live_in = list(live_in)
        self.live_out = list(live_out)
        self.init = init
        self.joined = [len(live_out)] if joined is None else list(joined)
        super().__init__(in_width, out_width, bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise as the published code."""
        if self.weight.is_meta:
            return
        weight = self.weight.new_empty(len(self.live_out), len(self.live_in))
        bias = None if self.bias is None else self.bias.new_zeros(len(self.live_out))
        if self.init == "xavier":
            for part in weight.split(self.joined):
                nn.init.xavier_uniform_(part, gain=math.sqrt(2))
        else:
            bound = len(self.live_in) ** -0.5
            weight.uniform_(-bound, bound)
            if bias is not None:
                bias.uniform_(-bound, bound)
        self.set_dense(weight, bias)

    @torch.no_grad()
    def set_dense(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take a weight ``(out, in)`` and bias ``(out,)`` without zeros, in the published order."""
        self.weight.copy_(pack(weight, self.live_out, self.live_in, self.weight.shape))
        if bias is not None:
            self.bias.copy_(pack(bias, self.live_out, None, self.bias.shape))


def pack(
    value: Tensor, live_out: Sequence[int], live_in: Sequence[int] | None, shape: Sequence[int]
) -> Tensor:
    """A tensor of zeros with ``value`` in the given rows, and columns if there are."""
    packed = value.new_zeros(*shape)
    place = torch.as_tensor(live_out, device=value.device)
    if live_in is None:
        packed[place] = value
    else:
        packed[place[:, None], torch.as_tensor(live_in, device=value.device)] = value
    return packed


def unpack(packed: Tensor, live_out: Sequence[int], live_in: Sequence[int] | None) -> Tensor:
    """The inverse of :func:`pack`."""
    picked = packed[torch.as_tensor(live_out, device=packed.device)]
    return picked if live_in is None else picked[:, torch.as_tensor(live_in, device=packed.device)]


def compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The type in which products of ``x`` with a weight are computed: autocast's, else the
    weight's."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x.device) else weight.dtype


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer, or its adapter, to rows of at least float32."""
    weight = layer.weight
    if isinstance(weight, Tensor) and not is_autocast(x.device):
        x = x.to(weight.dtype)
    return layer(x)


class RowNorm(nn.Module):
    """The gain of an RMSNorm over space parts, applied by functions of
    :mod:`hypvision.helm.rows`."""

    def __init__(self, layout: Layout, eps: float):
        super().__init__()
        self.layout = layout
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(layout.width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Ones, and zeros where there is no space."""
        self.weight.zero_()
        self.weight[: self.layout.size] = 1

    def forward(self, x: Tensor) -> Tensor:
        return rows.norm(x, self.weight, self.layout.n, self.layout.size, self.eps)


class PointEmbedding(nn.Embedding):
    """A table of points of the unit hyperboloid, time first, as the optimisers of
    :mod:`hypvision.optim` expect them.

    They start as published: directions evenly spread, the Euclidean length of a tangent vector at
    the origin 1.
    """

    manifold_parameters = ("weight",)

    def __init__(self, num_embeddings: int, dim: int):
        super().__init__(num_embeddings, dim)
        self.manifold = Lorentz(1.0)
        self.weight = ManifoldParameter(self.weight.data, self.manifold)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gaussian vectors of length 1 in all coordinates through the exponential map at the
        origin."""
        if self.weight.is_meta:
            return
        u = F.normalize(torch.randn_like(self.weight), dim=-1)
        # the published map takes the Minkowski norm as length; the time coordinate makes it smaller
        length = torch.sqrt(
            (u[:, 1:].square().sum(-1, keepdim=True) - u[:, :1].square()).clamp(min=1e-8)
        )
        space = u[:, 1:] * (torch.sinh(length) / length)
        self.weight[:, 1:] = space
        self.weight[:, :1] = torch.sqrt(space.square().sum(-1, keepdim=True) + 1)


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``, of an expert on a hyperboloid of its own with ``c``
    = ``-1/K``, which may be learned; None: on the model's, 1. ``ambient`` is the inner width."""

    c: nn.Parameter

    def __init__(
        self, config: Architecture, ambient: int, c: float | None = None, learned: bool = False
    ):
        super().__init__()
        outer = Layout(config.dim, config)
        inner = Layout(ambient, config)
        self.inner = inner
        self.fused = config.fused
        bias = config.lorentz
        live = [*inner.space, *(inner.width + i for i in inner.space)]
        joined = [len(inner.space)] * 2
        self.gate_up = RowLinear(
            outer.width, 2 * inner.width, outer.ambient, live, bias, joined=joined
        )
        self.down = RowLinear(inner.width, outer.width, inner.ambient, outer.space, bias)
        self.initial_c = c
        if c is not None:
            self.c = nn.Parameter(torch.full((1,), float(c)), requires_grad=learned)

    def reset_parameters(self) -> None:
        """The curvature; the maps have their own."""
        if self.initial_c is not None:
            nn.init.constant_(self.c, self.initial_c)

    @property
    def is_plain(self) -> bool:
        """Whether no adapter replaces a map."""
        return isinstance(self.gate_up, RowLinear) and isinstance(self.down, RowLinear)

    def curvature(self) -> Tensor:
        """``c`` of an expert, ``(1,)``; weight decay may make the number itself, which published
        code stores, negative."""
        return rows.upcast(self.c).clamp(min=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Points to rows without time."""
        if self.initial_c is None:
            h = rows.swiglu(apply_linear(self.gate_up, x), self.inner.n, 1.0, self.fused)
            return apply_linear(self.down, h)
        c = self.curvature()
        root = torch.sqrt(c)
        h = rows.swiglu(apply_linear(self.gate_up, x * root), self.inner.n, c, self.fused)
        return rows.upcast(apply_linear(self.down, h)) / root
