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
    """Return the least multiple of ``multiple`` that is not below ``count``."""
    return -(-count // multiple) * multiple


class Layout:
    """The positions of coordinates in the row of a point that has ``ambient`` coordinates, its time
    included; all of them are space if the geometry is Euclidean.

    Attributes:
        n: position of the time in a row; None without time.
        size: number of space coordinates.
        width: width of a row, with the zeros behind the coordinates.
        space, ambient: positions of the space coordinates; of all coordinates in the published
            order, time first.
    """

    def __init__(self, ambient: int, config: Architecture):
        self.size = ambient - 1 if config.lorentz else ambient
        self.n = self.size if config.lorentz else None
        self.width = rounded_up(ambient, config.pad)
        self.space = list(range(self.size))
        self.ambient = [*([] if self.n is None else [self.n]), *self.space]


class RowLinear(nn.Linear):
    """A linear map between padded rows. ``live_in`` and ``live_out`` list the positions of a row
    that contain coordinates, in the order of the published code. At all other positions the weight
    is zero, and stays so because its gradient is zero there.

    Args:
        init: ``"xavier"``, uniform with gain sqrt(2) and zero bias, or ``"torch"``, as
            ``nn.Linear``.
        joined: numbers of outputs of the published matrices that this layer joins; each is
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
        """Initialise the coordinates' weights as the published code does, all others with 0."""
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
        """Copy a weight ``(out, in)`` and a bias ``(out,)``, both without zeros and in the
        published order."""
        self.weight.copy_(pack(weight, self.live_out, self.live_in, self.weight.shape))
        if bias is not None:
            self.bias.copy_(pack(bias, self.live_out, None, self.bias.shape))


def pack(
    value: Tensor, live_out: Sequence[int], live_in: Sequence[int] | None, shape: Sequence[int]
) -> Tensor:
    """Return a tensor of zeros of the given shape with ``value`` in the rows ``live_out``, and the
    columns ``live_in`` if it is a matrix."""
    packed = value.new_zeros(*shape)
    place = torch.as_tensor(live_out, device=value.device)
    if live_in is None:
        packed[place] = value
    else:
        packed[place[:, None], torch.as_tensor(live_in, device=value.device)] = value
    return packed


def unpack(packed: Tensor, live_out: Sequence[int], live_in: Sequence[int] | None) -> Tensor:
    """Return the value from which :func:`pack` made a tensor: its rows ``live_out`` and columns
    ``live_in``."""
    picked = packed[torch.as_tensor(live_out, device=packed.device)]
    return picked if live_in is None else picked[:, torch.as_tensor(live_in, device=packed.device)]


def compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype in which products of ``x`` with a weight are computed: autocast's, else the
    weight's."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x.device) else weight.dtype


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the output of a linear layer, or of an adapter in its place, for rows of at least
    float32."""
    weight = layer.weight
    if isinstance(weight, Tensor) and not is_autocast(x.device):
        x = x.to(weight.dtype)
    return layer(x)


class RowNorm(nn.Module):
    """An RMSNorm over the space parts of rows, computed by :mod:`hypvision.helm.rows`."""

    def __init__(self, layout: Layout, eps: float):
        super().__init__()
        self.layout = layout
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(layout.width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the gain with 1, and with 0 where a row has no space coordinates."""
        self.weight.zero_()
        self.weight[: self.layout.size] = 1

    def forward(self, x: Tensor) -> Tensor:
        return rows.norm(x, self.weight, self.layout.n, self.layout.size, self.eps)


class PointEmbedding(nn.Embedding):
    """A table of points of the unit hyperboloid, time first, as the optimisers of
    :mod:`hypvision.optim` expect them.

    Points start as published: in evenly spread directions, as exponential maps of tangent vectors
    at the origin whose Euclidean length is 1.
    """

    manifold_parameters = ("weight",)

    def __init__(self, num_embeddings: int, dim: int):
        super().__init__(num_embeddings, dim)
        self.manifold = Lorentz(1.0)
        self.weight = ManifoldParameter(self.weight.data, self.manifold)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the points as exponential maps at the origin of Gaussian vectors that are
        scaled to the length 1 in all coordinates."""
        if self.weight.is_meta:
            return
        u = F.normalize(torch.randn_like(self.weight), dim=-1)
        # The published map takes the Minkowski norm as length, which the time coordinate makes
        # smaller.
        length = torch.sqrt(
            (u[:, 1:].square().sum(-1, keepdim=True) - u[:, :1].square()).clamp(min=1e-8)
        )
        space = u[:, 1:] * (torch.sinh(length) / length)
        self.weight[:, 1:] = space
        self.weight[:, :1] = torch.sqrt(space.square().sum(-1, keepdim=True) + 1)


def curvature(stored: list[Tensor]) -> Tensor:
    """Return ``c`` of experts, ``(E,)``, at least 1e-3: weight decay may make the stored numbers,
    which have the published form, negative."""
    return F.threshold(rows.upcast(torch.cat(stored)), 1e-3, 1e-3)


class FeedForward(nn.Module):
    """Feed-forward layer SwiGLU, ``down(silu(gate(x)) * up(x))``, with the inner width ``ambient``.
    With ``c`` = ``-1/K`` it is an expert on a hyperboloid of its own, whose curvature may be
    ``learned``; with None it is on the model's, c = 1."""

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
        """Initialise the curvature; the linear maps initialise themselves."""
        if self.initial_c is not None:
            nn.init.constant_(self.c, self.initial_c)

    @property
    def is_plain(self) -> bool:
        """Whether the linear maps are plain, with no adapter in their places."""
        return isinstance(self.gate_up, RowLinear) and isinstance(self.down, RowLinear)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows without time for points ``x``."""
        if self.initial_c is None:
            h = rows.swiglu(apply_linear(self.gate_up, x), self.inner.n, 1.0, self.fused)
            return apply_linear(self.down, h)
        c = curvature([self.c])
        root = torch.sqrt(c)
        h = rows.swiglu(apply_linear(self.gate_up, x * root), self.inner.n, c, self.fused)
        return rows.upcast(apply_linear(self.down, h)) / root
