"""Linear-time attention of Hypformer, on points of the hyperboloid."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import exact, safe_sqrt
from hypvision.io import ArgumentError, Plain, at_least
from hypvision.nn.attention import HeadProjections
from hypvision.nn.functional import precise
from hypvision.nn.linear import LorentzLinear


class LorentzLinearAttention(HeadProjections):
    r"""Attention in linear time on the space parts of points, from which the times follow
    (Hypformer, Yang et al., KDD 2024).

    .. math:: o_i = \frac{\varphi(q_i) \sum_j \varphi(k_j)^T v_j}
              {\varphi(q_i) \cdot \sum_j \varphi(k_j)} + W v_i + b, \qquad
              \varphi(x) = \frac{|u|}{|u^p|} u^p, \quad
              u = \frac{\mathrm{relu}(x) + \epsilon}{|\tau| + \epsilon}

    The heads are joined by their space parts. No ``(N, N)`` tensor is built. The weighted mean of a
    query without a positive feature is nearly 0, so the layer does not keep the radius: add a norm
    after it, as Hypformer does.

    Args:
        dim: space dimension of the tokens.
        num_heads: number of heads; it must divide ``dim``, unless ``head_dim`` is given.
        power: exponent ``p`` that sharpens the features :math:`\varphi`, at least 1.
        head_dim: space dimension of a head; ``dim / num_heads`` by default.
        init: initialisation of the projections, see :class:`LorentzLinear`; Hypformer's is
            ``"xavier"``.

    Attributes:
        scale: the parameter ``tau`` ``(1,)``, initially 1.
        local: the map by ``W`` and ``b``, a ``nn.Linear`` that all heads share.

    Shapes:
        tokens ``(B, N, dim)`` (and ``context`` ``(B, N, dim)`` of as many tokens) to
        ``(B, N, dim)``.
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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        factory: Plain = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, manifold, bias, head_dim, init, factory)
        at_least(1, power=power)
        self.power = power
        self.local = nn.Linear(self.head_dim, self.head_dim, bias, **factory)
        self.out = LorentzLinear(
            num_heads * self.head_dim, dim, manifold, bias, init=init, **factory
        )
        self.scale = nn.Parameter(torch.ones(1, **factory))

    def _focus(self, x: Tensor) -> Tensor:
        """Return the positive features :math:`\varphi(x)`, sharpened by the power, with the length
        of ``u``."""
        wide = precise(x)
        u = (wide.relu() + 1e-6) / (self.scale.to(wide.dtype).abs() + 1e-6)
        # Entries are divided by the largest one, because powers of large features overflow.
        top = u.amax(-1, keepdim=True)
        sharp = (u / top) ** self.power
        length = safe_sqrt((u * u).sum(-1, keepdim=True))
        return sharp * (length / safe_sqrt((sharp * sharp).sum(-1, keepdim=True)))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        query, key, value = self.heads(x, context)
        if query.shape[2] != key.shape[2]:
            raise ArgumentError(
                "LorentzLinearAttention: context must have as many tokens as x, got "
                f"{key.shape[2]} and {query.shape[2]}, since the value of each context token is "
                "added to the token at its position. Use LorentzAttention."
            )
        with exact(x.device):
            query = self._focus(query)
            key = self._focus(key)
            mixed = query @ (key.transpose(-1, -2) @ value.to(key.dtype))
            mixed = mixed / ((query * key.sum(-2, keepdim=True)).sum(-1, keepdim=True) + 1e-6)
        heads = mixed.to(value.dtype) + self.local(value)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2).to(x.dtype))
        return out
