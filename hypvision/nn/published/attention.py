"""Multi-head attention on the hyperboloid, over space-only tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.geometry.lorentz.means import centroid_space
from hypvision.geometry.numerics import exact, safe_sqrt
from hypvision.nn.checks import check_features, check_manifold, check_number, check_sizes
from hypvision.nn.functional import space_time
from hypvision.nn.linear import LorentzLinear

__all__ = ["LorentzAttention", "LorentzLinearAttention"]


class _Attention(nn.Module):
    """The projections to the heads, each a :class:`LorentzLinear`."""

    def __init__(
        self, dim: int, num_heads: int, manifold: Lorentz, bias: bool, head_dim: int | None, init: str, factory: dict
    ):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        check_sizes(self, dim=dim, num_heads=num_heads)
        if head_dim is not None:
            check_sizes(self, head_dim=head_dim)
        elif dim % num_heads:
            raise ValueError(
                f"{type(self).__name__}: num_heads must divide dim, got {num_heads} heads for {dim} dimensions. "
                "Or give head_dim."
            )
        self.dim, self.num_heads, self.head_dim = dim, num_heads, head_dim or dim // num_heads
        self.manifold = manifold
        inner = num_heads * self.head_dim
        self.query = LorentzLinear(dim, inner, manifold, bias, init=init, **factory)
        self.key = LorentzLinear(dim, inner, manifold, bias, init=init, **factory)
        self.value = LorentzLinear(dim, inner, manifold, bias, init=init, **factory)

    def _heads(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Space parts ``(B, heads, N, head_dim)`` of queries, keys and values."""
        check_features(self, x, self.dim, rank=3)
        if context is None:
            context = x
        else:
            check_features(self, context, self.dim, rank=3, name="context")
        pairs = ((self.query, x), (self.key, context), (self.value, context))
        return [layer(z).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer, z in pairs]

    def extra_repr(self) -> str:
        return f"{self.dim}, num_heads={self.num_heads}, head_dim={self.head_dim}"


class LorentzAttention(_Attention):
    r"""Self- or cross-attention whose scores are squared Lorentz distances and whose means are centroids.

    .. math:: \mathrm{score}(q, k) = \frac{2/c + 2\langle q, k\rangle_L}{\tau}, \qquad
              o = \frac{\sum_j a_j v_j}{\sqrt c\,\sqrt{-\langle\cdot,\cdot\rangle_L}}

    (Chen et al., ACL 2022; He et al., "HyperCore", 2025.) Constants fall out of the softmax, so the score is a product
    of points with the time of the query negated, and ``F.scaled_dot_product_attention`` does the work.

    Args:
        dim: space dimension of the tokens.
        num_heads: heads; they must divide ``dim``, unless ``head_dim`` is given.
        manifold: the hyperboloid.
        bias: whether the projections have biases.
        dropout: of the attention weights, in training.
        scale: initial temperature ``tau``, learned; ``sqrt(dim)`` by default.
        head_dim: space dimension of a head; ``dim / num_heads`` by default. HyperCore's is one less than that of the
            points: ``(dim + 1) / num_heads - 1``.
        join: how the heads become one point before the last projection: ``"space"``, by their space parts, time
            follows; ``"points"``, the projection reads every head's time, as HyperCore's does; or ``"centroid"``, their
            centroid, without a projection, as HyperCore's does without ``trans_heads_concat``.
        init: of the projections, see :class:`LorentzLinear`; HyperCore's is ``"xavier"``.

    Shapes:
        tokens ``(B, N, dim)`` (and ``context`` ``(B, M, dim)``) to ``(B, N, dim)``, or ``(B, N, head_dim)`` with
        ``join="centroid"``; ``mask`` as ``F.scaled_dot_product_attention`` takes it.

    Raises:
        TypeError: the manifold is not a hyperboloid, or an input is not floating point.
        ValueError: an argument is out of range, or an input has another shape.
    """

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
        device=None,
        dtype=None,
    ):
        factory = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, manifold, bias, head_dim, init, factory)
        check_number(self, "dropout", dropout, 0, below=1)
        if scale is not None:
            check_number(self, "scale", scale, 0, strict=True)
        if join not in ("space", "points", "centroid"):
            raise ValueError(f'LorentzAttention: join must be "space", "points" or "centroid", got {join!r}.')
        self.dropout, self.join = dropout, join
        if join == "space":
            self.out = LorentzLinear(num_heads * self.head_dim, dim, manifold, bias, init=init, **factory)
        elif join == "points":
            self.out = nn.Linear(num_heads * (self.head_dim + 1), dim, bias, **factory)
            self._init_joined(init)
        self.scale = nn.Parameter(torch.full((1,), dim**0.5 if scale is None else scale, **factory))

    @torch.no_grad()
    def _init_joined(self, init: str) -> None:
        """A projection that reads every head's time, with the entries of a :class:`LorentzLinear` of that ``init``."""
        inner, weight = self.num_heads * self.head_dim, self.out.weight
        like = LorentzLinear(inner, self.dim, self.manifold, init=init, device=weight.device, dtype=weight.dtype)
        columns = weight.view(self.dim, self.num_heads, -1)
        columns[..., 0] = like.time_weight.unsqueeze(1) / self.num_heads**0.5
        columns[..., 1:] = like.weight.view(self.dim, self.num_heads, -1)
        if self.out.bias is not None:
            self.out.bias.zero_()

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        c = self.manifold.c
        query, key, value = self._heads(x, context)
        # the temperature multiplies the queries, so that its gradient exists for every kernel
        factor = (2 / self.scale).to(query.dtype)
        query = torch.cat([-space_time(query, c).to(query.dtype), query], -1) * factor
        key = torch.cat([space_time(key, c).to(key.dtype), key], -1)
        dropout = self.dropout if self.training else 0.0
        # times beyond 1/sqrt(c): the softmax weights sum to 1, and small numbers keep their digits in half precision
        rise = space_time(value, c) - 1 / c**0.5
        value = torch.cat([rise.to(value.dtype), value], -1)
        if dropout:  # after which they sum to anything: a column of ones finds that out
            query, key, value = F.pad(query, (0, 1)), F.pad(key, (0, 1)), F.pad(value, (0, 1), value=1.0)
        mean = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=1.0)
        precise = mean.float() if mean.dtype in (torch.float16, torch.bfloat16) else mean
        if dropout:
            precise = precise[..., :-1] / precise[..., -1:].clamp(min=1e-6)
        heads = centroid_space(precise[..., :1] + 1 / c**0.5, precise[..., 1:], c)
        if self.join == "centroid":
            return centroid_space(space_time(heads, c).mean(1), heads.mean(1), c).to(x.dtype)
        heads = heads.to(x.dtype)
        if self.join == "points":
            heads = torch.cat([space_time(heads, c).to(heads.dtype), heads], -1)
        return self.out(heads.transpose(1, 2).flatten(2))


class LorentzLinearAttention(_Attention):
    r"""Attention in linear time over the space parts, time follows (Hypformer, Yang et al., KDD 2024).

    .. math:: o_i = \frac{\varphi(q_i) \sum_j \varphi(k_j)^T v_j}{\varphi(q_i) \cdot \sum_j \varphi(k_j)} + W v_i + b,
              \qquad \varphi(x) = \frac{|u|}{|u^p|} u^p, \quad u = \frac{\mathrm{relu}(x) + \epsilon}{|\tau| + \epsilon}

    Heads are joined by their space parts. No ``(N, N)`` tensor is built. The mean of a query without a positive
    feature is nearly 0, so that the layer does not keep the radius: put a norm behind it, as Hypformer does.

    Args:
        dim: space dimension of the tokens.
        num_heads: heads; they must divide ``dim``, unless ``head_dim`` is given.
        manifold: the hyperboloid.
        bias: whether the projections have biases.
        power: exponent ``p`` that sharpens the features, at least 1.
        head_dim: space dimension of a head; ``dim / num_heads`` by default.
        init: of the projections, see :class:`LorentzLinear`; Hypformer's is ``"xavier"``.

    Attributes:
        scale: ``tau`` ``(1,)``, at first 1.
        local: ``W`` and ``b``, shared by the heads, a ``nn.Linear``.

    Shapes:
        tokens ``(B, N, dim)`` (and ``context`` ``(B, N, dim)`` of as many tokens) to ``(B, N, dim)``.

    Raises:
        TypeError: the manifold is not a hyperboloid, or an input is not floating point.
        ValueError: an argument is out of range, or an input has another shape.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        manifold: Lorentz,
        bias: bool = True,
        power: float = 2.0,
        head_dim: int | None = None,
        init: str = "isometric",
        device=None,
        dtype=None,
    ):
        factory = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, manifold, bias, head_dim, init, factory)
        check_number(self, "power", power, 1)
        self.power = power
        self.local = nn.Linear(self.head_dim, self.head_dim, bias, **factory)
        self.out = LorentzLinear(num_heads * self.head_dim, dim, manifold, bias, init=init, **factory)
        self.scale = nn.Parameter(torch.ones(1, **factory))

    def _focus(self, x: Tensor) -> Tensor:
        """Positive features of the same length, sharpened by the power."""
        precise = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        u = (precise.relu() + 1e-6) / (self.scale.to(precise.dtype).abs() + 1e-6)
        # relative to the largest entry: powers of large features would overflow
        top = u.amax(-1, keepdim=True)
        sharp = (u / top) ** self.power
        length = safe_sqrt((u * u).sum(-1, keepdim=True))
        return sharp * (length / safe_sqrt((sharp * sharp).sum(-1, keepdim=True)))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        query, key, value = self._heads(x, context)
        if query.shape[2] != key.shape[2]:
            raise ValueError(
                f"LorentzLinearAttention: context must have as many tokens as x, got {key.shape[2]} and "
                f"{query.shape[2]}: every value is added to the token in its place. Use LorentzAttention."
            )
        with exact(x.device):
            query, key = self._focus(query), self._focus(key)
            mixed = query @ (key.transpose(-1, -2) @ value.to(key.dtype))
            mixed = mixed / ((query * key.sum(-2, keepdim=True)).sum(-1, keepdim=True) + 1e-6)
        heads = mixed.to(value.dtype) + self.local(value)
        return self.out(heads.transpose(1, 2).flatten(2).to(x.dtype))
