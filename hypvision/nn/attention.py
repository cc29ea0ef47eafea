"""Multi-head attention on the hyperboloid, over space-only tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz

from .functional import space_time
from .linear import LorentzLinear

__all__ = ["LorentzAttention"]


class LorentzAttention(nn.Module):
    r"""Self- or cross-attention whose scores are squared Lorentz distances and whose means are centroids.

    .. math:: \mathrm{score}(q, k) = \frac{2/c + 2\langle q, k\rangle_L}{\tau}, \qquad
              o = \frac{\sum_j a_j v_j}{\sqrt c\,\sqrt{-\langle\cdot,\cdot\rangle_L}}

    (Chen et al., ACL 2022; He et al., "HyperCore", 2025.) Constants fall out of the softmax, so the score is a product
    of points with the time of the query negated, and ``F.scaled_dot_product_attention`` does the work. Heads are joined
    by their space parts.

    Args:
        dim: space dimension of the tokens.
        num_heads: heads; they must divide ``dim``.
        manifold: the hyperboloid.
        bias: whether the projections have biases.
        dropout: of the attention weights, in training.
        scale: initial temperature ``tau``, learned; ``sqrt(dim)`` by default.

    Shapes:
        tokens ``(B, N, dim)`` (and ``context`` ``(B, M, dim)``) to ``(B, N, dim)``; ``mask`` as
        ``F.scaled_dot_product_attention`` takes it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        manifold: Lorentz,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim, got {num_heads} heads for {dim} dimensions.")
        factory = {"device": device, "dtype": dtype}
        self.dim, self.num_heads, self.dropout = dim, num_heads, dropout
        self.manifold = manifold
        self.query = LorentzLinear(dim, dim, manifold, bias, init="xavier", **factory)
        self.key = LorentzLinear(dim, dim, manifold, bias, init="xavier", **factory)
        self.value = LorentzLinear(dim, dim, manifold, bias, init="xavier", **factory)
        self.out = LorentzLinear(dim, dim, manifold, bias, init="xavier", **factory)
        self.scale = nn.Parameter(torch.full((1,), dim**0.5 if scale is None else scale, **factory))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        c = self.manifold.c
        query, key, value = (
            layer(z).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, z in ((self.query, x), (self.key, context), (self.value, context))
        )
        # the temperature multiplies the queries, so that its gradient exists for every kernel
        factor = (2 / self.scale).to(query.dtype)
        query = torch.cat([-space_time(query, c).to(query.dtype), query], -1) * factor
        key = torch.cat([space_time(key, c).to(key.dtype), key], -1)
        # times beyond 1/sqrt(c): the softmax weights sum to 1, and small numbers keep their digits in half precision
        rise = space_time(value, c) - 1 / c**0.5
        value = torch.cat([rise.to(value.dtype), value], -1)
        dropout = self.dropout if self.training else 0.0
        mean = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=1.0)
        wide = mean.float() if mean.dtype in (torch.float16, torch.bfloat16) else mean
        time, space = wide[..., :1] + 1 / c**0.5, wide[..., 1:]
        length = torch.linalg.vector_norm(space, dim=-1, keepdim=True)
        norm = ((time - length) * (time + length) * c).clamp(min=1e-6)
        heads = (space / torch.sqrt(norm)).to(x.dtype)
        return self.out(heads.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        return f"{self.dim}, num_heads={self.num_heads}"
