r"""The map of HyperCLIP: rows times a block-diagonal matrix on the Poincare ball, and its closed form.

HyperCLIP (Peng et al., CVPR 2025) sends a vector :math:`w` to :math:`\log_0(S \otimes_c \exp_0(w))` with
:math:`S = \mathrm{diag}(S_1, ..., S_K)`. The Moebius product is :math:`\exp_0 \circ S \circ \log_0`, so the curvature
cancels and the map is linear, except where the official code clamps. With all its clamps it is, exactly,

.. math:: w' = S w \cdot \min\left(1, \frac{A_0}{\sqrt c\,|w|}, \frac{A_1}{\sqrt c\,|S w|}\right),
          \quad A_0 = \mathrm{artanh}(1 - 10^{-5}), \; A_1 = \mathrm{artanh}(1 - 10^{-3}):

a linear map, clipped to the radius :math:`A_1 / \sqrt c` (38 for c = 0.01, 3.8 for c = 1). :func:`map_rows` computes
that; :func:`map_rows_literal` is the chain step by step, for study and tests.

Shapes: rows ``(..., d)``; ``s`` is ``(K, n, n)`` with ``K * n = d``, or ``(n, n)``: one block for all K. A row of
weights ``w`` becomes ``S w``, so a matrix W becomes ``W S^T``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hypvision.errors import HypvisionError
from hypvision.geometry.numerics import exact, tanhc

__all__ = ["BlockMap", "CLIP_RADIUS", "block_product", "map_matrices", "map_packed", "map_rows", "map_rows_literal"]

_EPS_ARTANH = 1e-5  # official: artanh's argument stays in +-(1 - 1e-5)
_EPS_BALL = 1e-3  # official: points are projected to the radius (1 - 1e-3) / sqrt(c)
_MIN_NORM = 1e-5
_TANH_LIMIT = 15.0
CLIP_RADIUS = math.atanh(1 - _EPS_BALL)
"""Times 1/sqrt(c): the largest norm of a mapped row, :math:`A_1`."""
_INPUT_RADIUS = math.atanh(1 - _EPS_ARTANH)


def block_product(x: Tensor, s: Tensor) -> Tensor:
    """``x`` times the transposed block-diagonal matrix, which is never built: ``(..., d) -> (..., d)``."""
    n = s.shape[-1]
    if n == 1:
        return x * s.reshape(-1)
    blocks = x.unflatten(-1, (-1, n))
    if s.dim() == 2:
        return (blocks @ s.T).flatten(-2)
    return torch.einsum("...kn,kmn->...km", blocks, s).flatten(-2)


def map_rows(x: Tensor, s: Tensor, c: float, mobius: bool = True) -> Tensor:
    r"""The closed form of :func:`map_rows_literal`: finite with finite gradients for every finite input.

    Args:
        x: rows ``(..., d)``.
        s: blocks ``(K, n, n)`` or one ``(n, n)``.
        c: curvature ``c > 0``.
        mobius: False: :math:`\log_0(S \exp_0(w))`, the plain matrix product on the ball (Table 7 as we read it).

    Returns:
        ``(..., d)``, in the dtype of ``x``; computed in float32 at least.
    """
    wide = torch.promote_types(torch.promote_types(x.dtype, s.dtype), torch.float32)
    with exact(x.device):
        u, s = x.to(wide), s.to(wide)
        root, tiny = math.sqrt(c), torch.finfo(wide).tiny
        y = block_product(u, s)
        a, mapped = root * _norm(u, tiny), root * _norm(y, tiny)
        if mobius:  # divisors are clamped where the quotient is 1: an infinite one would make the gradient NaN
            first = _INPUT_RADIUS / a.clamp(min=_INPUT_RADIUS)
            return (y * torch.minimum(first, CLIP_RADIUS / mapped.clamp(min=CLIP_RADIUS))).to(x.dtype)
        # exp0 shortens w by tanh(a)/a; S is linear, so it commutes with that; log0 lengthens again.
        shortened = tanhc(a)
        inside, limit = mapped * shortened, 1 - _EPS_BALL
        lengthened = _atanhc(inside.clamp(max=limit)) * shortened
        return (y * torch.where(inside < limit, lengthened, CLIP_RADIUS / mapped.clamp(min=limit))).to(x.dtype)


def _atanhc(z: Tensor) -> Tensor:
    """artanh(z) / z for 0 <= z < 1."""
    small = z < 1e-2  # the next term of the series is below 1e-16
    wide = torch.where(small, 0.5, z)
    q = z.square()
    return torch.where(small, 1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q / 9))), torch.atanh(wide) / wide)


def _norm(x: Tensor, tiny: float) -> Tensor:
    # The derivative of the norm at 0 is not a number; of the clamped square it is 0.
    largest = x.detach().abs().amax(-1, keepdim=True).clamp(min=tiny)
    return (x / largest).square().sum(-1, keepdim=True).clamp(min=1e-30).sqrt() * largest


def map_rows_literal(x: Tensor, s: Tensor, c: float, mobius: bool = True) -> Tensor:
    """The official chain exp0, Moebius product, projection, log0, with its constants. Arguments as for
    :func:`map_rows`.

    Its gradient for a row of zeros is NaN where the official one is (0/0 behind a ``where``), and in float32 it loses
    accuracy for short rows: 4e-4 at a norm of 1e-3, 3 % below 1e-5 for c = 0.01.
    """
    root = math.sqrt(c)

    def norm(v: Tensor) -> Tensor:
        return v.norm(dim=-1, keepdim=True)

    def artanh(v: Tensor) -> Tensor:
        v = _Clamp.apply(v, 1 - _EPS_ARTANH)
        return 0.5 * (torch.log(1 + v) - torch.log(1 - v))

    n = norm(x).clamp(min=_MIN_NORM)
    point = torch.tanh((root * n).clamp(max=_TANH_LIMIT)) * x / (root * n)
    product = block_product(point, s)
    if mobius:
        pn, mn = norm(point).clamp(min=_MIN_NORM), norm(product)
        moved = torch.tanh((mn / pn * artanh(root * pn)).clamp(max=_TANH_LIMIT)) * product / (mn * root)
        product = torch.where((product == 0).all(-1, keepdim=True), torch.zeros_like(moved), moved)
    radius, limit = norm(product).clamp(min=_MIN_NORM), (1 - _EPS_BALL) / root
    product = torch.where(radius > limit, product / radius * limit, product)
    n = norm(product).clamp(min=_MIN_NORM)
    return product / n / root * artanh(root * n)


class _Clamp(torch.autograd.Function):
    """Clamp to +-limit, passing the gradient through: the official artanh differentiates at the clamped place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _MapMatrices(torch.autograd.Function):
    """:func:`map_rows` of many frozen matrices at once; keeps nothing for backward but its input and its output."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, w: Tensor, limit: Tensor | None, clip: float | None) -> Tensor:
        """``s`` (G, K, n, n); ``w`` (G, K, d, n), rows cut into blocks; ``limit`` (G, d); -> (G, d, K * n)."""
        raw = torch.matmul(w, s.transpose(-1, -2))
        out = torch.empty_like(raw.transpose(1, 2), memory_format=torch.contiguous_format)
        scale = None
        if clip is None:
            out.copy_(raw.transpose(1, 2))
        else:
            length = torch.linalg.vector_norm(raw, dim=(1, 3))
            ratio = clip / length.clamp(min=torch.finfo(raw.dtype).tiny)
            scale = torch.minimum(limit, ratio)
            torch.mul(raw.transpose(1, 2), scale[..., None, None], out=out)
            scale = torch.where(ratio < limit, -scale, scale)  # the sign tells where the radial clip acts
        out = out.flatten(-2)
        ctx.save_for_backward(w, out, scale)
        ctx.clip = clip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        w, out, scale = ctx.saved_tensors
        if scale is not None:
            grad = _through_clip(grad, out, scale, ctx.clip)
        blocks = grad.unflatten(-1, (w.shape[1], -1)).transpose(1, 2)  # (G, K, d, m)
        return torch.matmul(blocks.transpose(-1, -2), w), None, None, None


def map_matrices(s: Tensor, w: Tensor, limit: Tensor | None, clip: float | None) -> Tensor:
    """:func:`map_rows` of G frozen matrices in one batched product, differentiable in ``s`` alone.

    Args:
        s: blocks ``(G, K, n, n)``.
        w: the matrices, rows cut into blocks and these moved forward: ``(G, K, d, n)``.
        limit: ``min(1, A0 / (sqrt(c) |w|))`` of each row ``(G, d)``; None with ``clip=None``.
        clip: :data:`CLIP_RADIUS` / sqrt(c); None for the Euclidean map, which is not clipped.

    Returns:
        ``(G, d, K * n)``.
    """
    return _MapMatrices.apply(s, w, limit, clip)


class _MapPacked(torch.autograd.Function):
    """:func:`map_packed`: every product reads and writes where the numbers lie, so nothing is rearranged."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, limit: Tensor | None, clip: float | None, chunks: tuple[int, ...], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        n, found, scales = s.shape[-1], [], {}
        for i, weight in enumerate(weights):
            wide = weight.to(s.dtype)
            out = torch.empty_like(wide, memory_format=torch.contiguous_format)
            for number, (w, o) in enumerate(zip(wide.chunk(3), out.chunk(3))):
                if number not in chunks:
                    o.copy_(w)
                    continue
                p = chunks.index(number)
                for k, (a, b) in enumerate(zip(w.split(n, 1), o.split(n, 1))):
                    torch.mm(a, s[i, p, k].t(), out=b)
                if clip is None:
                    continue
                ratio = clip / torch.linalg.vector_norm(o, dim=1).clamp(min=torch.finfo(o.dtype).tiny)
                scale = torch.minimum(limit[i, p], ratio)
                if (scale < 1).any():
                    o.mul_(scale.unsqueeze(1))
                    # the sign tells where the radial clip acts
                    scales[i, p] = torch.where(ratio < limit[i, p], -scale, scale)
            found.append(out.to(weight.dtype))
        ctx.keys, ctx.clip, ctx.chunks, ctx.size = list(scales), clip, chunks, s.shape
        kept = [found[i].chunk(3)[chunks[p]] for i, p in scales]
        ctx.save_for_backward(*weights, *scales.values(), *kept)
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        count, clipped = len(grads), len(ctx.keys)
        weights, rest = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        scales = dict(zip(ctx.keys, zip(rest[:clipped], rest[clipped:])))
        n = ctx.size[-1]
        dtype = torch.promote_types(weights[0].dtype, torch.float32)
        result = torch.zeros(ctx.size, dtype=dtype, device=weights[0].device)
        for i, (weight, grad) in enumerate(zip(weights, grads)):
            if grad is None:
                continue
            rows, cotangents = weight.to(dtype).chunk(3), grad.to(dtype).chunk(3)
            for p, number in enumerate(ctx.chunks):
                w, g = rows[number], cotangents[number]
                if (i, p) in scales:
                    scale, out = scales[i, p]
                    g = _through_clip(g, out.to(dtype), scale, ctx.clip)
                for k, (a, b) in enumerate(zip(g.split(n, 1), w.split(n, 1))):
                    torch.mm(a.t(), b, out=result[i, p, k])
        return result, None, None, None, *(None for _ in weights)


def _through_clip(grad: Tensor, out: Tensor, scale: Tensor, clip: float) -> Tensor:
    """The gradient before rows were scaled: where the clip acts (negative scales) only its part across the row."""
    radial = torch.where(scale < 0, (grad * out).sum(-1) / clip**2, 0)
    return torch.addcmul(grad, out, radial[..., None], value=-1).mul_(scale.abs()[..., None])


def map_packed(
    s: Tensor, weights: Sequence[Tensor], limit: Tensor | None, clip: float | None, chunks: tuple[int, ...] = (0, 1, 2)
) -> tuple[Tensor, ...]:
    """:func:`map_rows` of the packed projections of L layers, in place of :func:`map_matrices` on a CPU.

    There a batched product would first rearrange all weights, and all gradients, which costs as much as the products.

    Args:
        s: blocks ``(L, P, K, n, n)``.
        weights: the frozen packed projections ``(3d, d)``.
        limit: ``min(1, A0 / (sqrt(c) |w|))`` of each mapped row ``(L, P, d)``; None with ``clip=None``.
        clip: see :func:`map_matrices`.
        chunks: which thirds of a packed projection are mapped, P of them; the others are copied.

    Returns:
        L adapted projections ``(3d, d)``, differentiable in ``s`` alone.
    """
    return _MapPacked.apply(s, limit, clip, chunks, *weights)


class BlockMap(nn.Module):
    """The trainable blocks of one projection; the identity at first.

    Args:
        dim: length of a row.
        block: side n of a block, a divisor of ``dim``; 1 for a diagonal.
        c: curvature.
        shared: one block, used ``dim / block`` times.
        mobius: see :func:`map_rows`.
        hyperbolic: False: plain ``S w`` without a clip.
        fused: False: the literal chain.

    Raises:
        HypvisionError: ``block`` does not divide ``dim``, or ``c`` is not positive.
    """

    def __init__(
        self,
        dim: int,
        block: int = 128,
        c: float = 0.01,
        shared: bool = False,
        mobius: bool = True,
        hyperbolic: bool = True,
        fused: bool = True,
    ):
        super().__init__()
        if not isinstance(block, int) or block < 1 or dim % block:
            near = ", ".join(str(n) for n in range(1, dim + 1) if dim % n == 0 and n >= 8)
            raise HypvisionError(f"A block of {block} does not divide the width {dim}. Use one of {near}.")
        if not c > 0:
            raise HypvisionError(f"The curvature must be c > 0, got {c}. For none use hyperbolic=False.")
        self.dim, self.block, self.c = dim, block, float(c)
        self.mobius, self.hyperbolic, self.fused = mobius, hyperbolic, fused
        eye = torch.eye(block)
        self.weights = nn.Parameter(eye if shared else eye.repeat(dim // block, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(..., dim)``."""
        if not self.hyperbolic:
            return block_product(x.to(torch.promote_types(x.dtype, self.weights.dtype)), self.weights).to(x.dtype)
        function = map_rows if self.fused else map_rows_literal
        return function(x, self.weights, self.c, self.mobius).to(x.dtype)

    def blocks(self) -> Tensor:
        """``(K, n, n)``, also where they are one."""
        return self.weights.expand(self.dim // self.block, self.block, self.block)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, block={self.block}, c={self.c}, hyperbolic={self.hyperbolic}"
