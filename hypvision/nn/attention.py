"""Multi-head attention on the hyperboloid, over space-only tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.io import ArgumentError, Plain, between, one_of

from .checks import check_features, check_manifold, check_positive, check_sizes
from .functional import divided, precise, timed, to_centroids, with_time
from .linear import LorentzLinear, timed_linear


class HeadProjections(nn.Module):
    """The linear layers of multi-head attention, each a :class:`LorentzLinear`, that make queries,
    keys and values from tokens."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        manifold: Lorentz,
        bias: bool,
        head_dim: int | None,
        init: str,
        factory: Plain,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(
            self, dim=dim, num_heads=num_heads, head_dim=1 if head_dim is None else head_dim
        )
        if head_dim is None and dim % num_heads:
            raise ArgumentError(
                f"{type(self).__name__}: num_heads must divide dim, got {num_heads} heads for "
                f"{dim} dimensions. Change one of the two, or give head_dim."
            )
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = head_dim or dim // num_heads
        self.manifold = manifold
        inner = num_heads * self.head_dim
        self.query, self.key, self.value = (
            LorentzLinear(dim, inner, manifold, bias, init=init, **factory) for _ in range(3)
        )

    def projections(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Return the space parts of queries, keys and values, in one product for those that read
        the same tokens: ``(3, B, heads, N, head_dim)``, or, with a ``context``, ``(1, ...)`` of
        queries and ``(2, ...)`` of keys and values."""
        check_features(self, x, self.dim, rank=3)
        if context is None:
            return [self._projected(x, self.query, self.key, self.value)]
        check_features(self, context, self.dim, rank=3, name="context")
        return [self._projected(x, self.query), self._projected(context, self.key, self.value)]

    def _projected(self, x: Tensor, *layers: LorentzLinear) -> Tensor:
        sides = [layer.time_weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        # All numbers are joined at once, and parted again.
        parts = [layer.weight.flatten() for layer in layers]
        width = sum(len(side) for side in sides)
        joined = torch.cat([*parts, *sides, *biases]).split(
            [width * self.dim, width, *([width] if biases else [])]
        )
        weight = joined[0].view(width, self.dim)
        time_weight = joined[1]
        bias = joined[2] if biases else None
        x, time = timed(x, self.manifold.c)
        out = timed_linear(x, time, weight, time_weight, bias)
        apart: Tensor = out.unflatten(-1, (len(layers), self.num_heads, -1))
        return apart.permute(2, 0, 3, 1, 4)

    def heads(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Return the space parts ``(B, heads, N, head_dim)`` of queries, keys and values."""
        return [one for part in self.projections(x, context) for one in part.unbind()]

    def extra_repr(self) -> str:
        return f"{self.dim}, num_heads={self.num_heads}, head_dim={self.head_dim}"


class LorentzAttention(HeadProjections):
    r"""Self- or cross-attention that scores by squared Lorentz distances and takes centroids of
    values.

    .. math:: \mathrm{score}(q, k) = \frac{2/c + 2\langle q, k\rangle_L}{\tau}, \qquad
              o = \frac{\sum_j a_j v_j}{\sqrt c\,\sqrt{-\langle\cdot,\cdot\rangle_L}}

    (Chen et al., ACL 2022; He et al., "HyperCore", 2025.) The softmax ignores constants, so the
    score is a product of points with the query's time negated, which
    ``F.scaled_dot_product_attention`` computes.

    Args:
        dim: space dimension of the tokens.
        num_heads: number of heads; it must divide ``dim``, unless ``head_dim`` is given.
        dropout: dropout probability of the attention weights, in training.
        scale: initial temperature ``tau``, which is learned; ``sqrt(dim)`` by default.
        head_dim: space dimension of a head; ``dim / num_heads`` by default. In HyperCore it is one
            less than the heads' share of coordinates: ``(dim + 1) / num_heads - 1``.
        join: how the heads become one point before the last projection. ``"space"``: their space
            parts are concatenated and the time is computed anew. ``"points"``: the projection reads
            every head's time too, as in HyperCore. ``"centroid"``: their centroid is the result,
            without a projection, as in HyperCore without ``trans_heads_concat``.
        init: initialisation of the projections, see :class:`LorentzLinear`; that of HyperCore's
            LViT is ``"torch"``, its other layers have ``"xavier"``.

    Shapes:
        tokens ``(B, N, dim)`` (and ``context`` ``(B, M, dim)``) to ``(B, N, dim)``, or
        ``(B, N, head_dim)`` with ``join="centroid"``; ``mask`` as
        ``F.scaled_dot_product_attention`` takes it.
    """

    out: LorentzLinear | nn.Linear

    def __init__(
        self,
        dim: int,
        num_heads: int,
        manifold: Lorentz,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        head_dim: int | None = None,
        join: str = "space",
        init: str = "isometric",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        factory: Plain = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, manifold, bias, head_dim, init, factory)
        between(0, 1, dropout=dropout)
        check_positive(self, scale=scale)
        one_of(("space", "points", "centroid"), join=join)
        self.dropout = dropout
        self.join = join
        if join == "space":
            self.out = LorentzLinear(
                num_heads * self.head_dim, dim, manifold, bias, init=init, **factory
            )
        elif join == "points":
            self.out = self._joined(init, bias, factory)
        self.scale = nn.Parameter(torch.full((1,), dim**0.5 if scale is None else scale, **factory))

    @torch.no_grad()
    def _joined(self, init: str, bias: bool, factory: Plain) -> nn.Linear:
        """Return a last projection that reads every head's time, with the entries of a
        :class:`LorentzLinear` of the given ``init``."""
        out = nn.Linear(self.num_heads * (self.head_dim + 1), self.dim, bias, **factory)
        if init == "torch":
            return out
        like = LorentzLinear(
            self.num_heads * self.head_dim, self.dim, self.manifold, init=init, **factory
        )
        columns = out.weight.view(self.dim, self.num_heads, -1)
        columns[..., 0] = like.time_weight.unsqueeze(1) / self.num_heads**0.5
        columns[..., 1:] = like.weight.view(self.dim, self.num_heads, -1)
        if bias:
            out.bias.zero_()
        return out

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        c = self.manifold.c
        dropout = self.dropout if self.training else 0.0
        points = self.head_dim + 1
        # Columns of zeros are added up to a multiple of 8, which fused kernels need.
        spare = -(points + bool(dropout)) % 8 + bool(dropout)
        query, key, value = (
            one
            for i, part in enumerate(self.projections(x, context))
            for one in with_time(part, c, spare, negative=i == 0).to(part.dtype).unbind()
        )
        # The temperature divides the queries, because only so every attention kernel gives it a
        # gradient.
        query = divided(query, self.scale.to(query.dtype))
        if dropout:  # dropout changes the sums of the weights, so a column of ones computes them
            sums = value.new_zeros(value.shape[-1])
            sums[points:] = 1.0
            value = value + sums
        mean = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=2.0
        )
        means = precise(mean)
        if dropout:
            means = means / means[..., points : points + 1].clamp(min=1e-6)
        heads = to_centroids(means[..., :points], c)
        if self.join == "centroid":
            return to_centroids(heads.mean(1), c)[..., 1:].to(x.dtype)
        if self.join == "space":
            heads = heads[..., 1:]
        out: Tensor = self.out(heads.to(x.dtype).transpose(1, 2).flatten(2))
        return out
