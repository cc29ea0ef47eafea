r"""Attention by squared Lorentz distances: full (HELM-D) and latent (HELM-MiCE's HMLA).

The logits are :math:`(2 + 2\langle q, k\rangle_L)/f` with a learned ``f``, the results are
centroids. The softmax ignores constants, so :math:`Q = [q_s, -q_t], K = [k_s, k_t], V = [v_s, v_t]`
go through ``scaled_dot_product_attention`` with the scale ``2/f``. The cache holds space parts; for
latent attention it holds the latent vectors, the rotated keys and the times of keys and values of
each head, and keys and values are never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hypvision.geometry.numerics import Function, exact, is_autocast
from hypvision.nn.functional import divided

from . import rows
from .cache import Cache
from .config import Architecture
from .layers import Layout, RowLinear, RowNorm, apply_linear, rounded_up
from .rope import Rotary

# Fused attention on a GPU takes heads whose length is a multiple of this number.
FUSED = 8


class Context(NamedTuple):
    """The context of attention: which tokens may attend to which, and the cache of earlier tokens.

    Attributes:
        start: position of the first token, which is the number of tokens in the cache.
        mask: ``(B, 1, L, start + L)``, True where a token attends; None for a causal mask.
        lengths: lengths of the documents, over all rows; None if every row is one document.
        cache: the cache of earlier tokens, or None.
        documents: for each token ``(B, L)`` the number of its document, -1 for padding; or None.
        broken: ``(B, L)``, True for tokens whose embeddings were not finite and were replaced; None
            if there are none.
        places: positions ``(B, L)`` or ``(1, L)`` of the tokens in their documents; None with RoPE,
            to which only differences of columns matter.
    """

    start: int = 0
    mask: Tensor | None = None
    lengths: Sequence[int] | None = None
    cache: Cache | None = None
    documents: Tensor | None = None
    broken: Tensor | None = None
    places: Tensor | None = None

    def remember(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add keys and values ``(B, H, L, d)`` to the cache, if there is one, and return those of
        all tokens."""
        return (keys, values) if self.cache is None else self.cache.update(keys, values, layer)

    def seeing(self, broken: Tensor) -> Tensor:
        """Return which tokens ``(B, L)`` attend to one of the ``broken`` tokens ``(B, L)``,
        themselves included."""
        if self.mask is not None:
            return (self.mask[:, 0, :, self.start :] & broken[:, None]).any(-1)
        count = broken.long().cumsum(1)
        if self.documents is not None:
            count = count - (count - broken.long()).gather(1, first_columns(self.documents))
        return count > 0

    def marked(self, keys: Tensor) -> Tensor:
        """Return keys ``(B, ..., L, d)`` for a cache, with NaN for broken tokens, so that every
        token that attends to one becomes NaN."""
        if self.broken is None:
            return keys
        return keys.masked_fill(
            self.broken.view(len(keys), *[1] * (keys.dim() - 3), keys.shape[-2], 1), float("nan")
        )

    def weighed(self, values: Tensor) -> Tensor:
        """Return values from a cache with NaN replaced by 0 if there is a mask, because a weight of
        0 times NaN is NaN."""
        return values if self.mask is None else values.masked_fill(values.isnan(), 0.0)


def first_columns(documents: Tensor) -> Tensor:
    """Return for each token the column ``(B, L)`` where its document begins; ``documents``
    ``(B, L)`` holds the numbers of the documents."""
    length = documents.shape[1]
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (min(1, length), 0))
    column = torch.arange(length, device=documents.device)
    return torch.where(begins, column, 0).cummax(1).values


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, context: Context) -> Tensor:
    """Return the ``scaled_dot_product_attention`` of queries, keys and values ``(B, H, L, d)``
    within documents, without an (L, L) mask for them.

    One call per document is less work than one masked call.
    """
    if context.lengths is not None and len(context.lengths) > q.shape[0]:
        whole = q.shape
        lengths = list(context.lengths)
        # Flattened rows and ``lengths`` have the documents in the same order.
        parts = zip(*(x.transpose(1, 2).flatten(0, 1).split(lengths) for x in (q, k, v)))
        found = []
        for part in parts:
            one_q, one_k, one_v = (x.transpose(0, 1)[None] for x in part)
            found.append(
                F.scaled_dot_product_attention(one_q, one_k, one_v, is_causal=True, scale=scale)
            )
        joined = torch.cat([x[0].transpose(0, 1) for x in found])
        return joined.view(whole[0], whole[2], whole[1], v.shape[-1]).transpose(1, 2)
    if context.mask is not None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=context.mask, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(q.shape[2] > 1), scale=scale)


def _attend_half(
    q: Tensor, k: Tensor, v: Tensor, n: int, m: int, scale: float, context: Context, dtype
) -> Tensor:
    """Return :func:`attend` of points in half precision, whose times, in slots ``n`` of keys and
    ``m`` of values, are far above 1.

    The softmax ignores a shift of all key times, and a mean shifts with all value times;
    subtracting the mean times leaves more digits for the differences.
    """
    place = torch.arange(k.shape[-1], device=k.device)
    shift_k, shift_v = (
        x[..., slot].mean(-1)[..., None, None].detach() for x, slot in ((k, n), (v, m))
    )
    k = torch.where(place == n, k - shift_k, k)
    v = torch.where(place == m, v - shift_v, v)
    with exact(q.device):
        out = attend(q.to(dtype), k.to(dtype), v.to(dtype), scale, context).to(q.dtype)
    return torch.where(place == m, out + shift_v, out)


def _time(space: Tensor) -> Tensor:
    return torch.sqrt(torch.linalg.vector_norm(space, dim=-1).square_() + 1)


class _Heads(Function):
    """Compute the heads of full attention in place from the product with all their weights: rotate
    queries and keys and write the times."""

    @staticmethod
    def forward(ctx, product, cos, sin, heads, size, n):
        b, length, _ = product.shape
        packed = product.detach()[..., : 3 * heads * size].view(b, length, 3, heads, size)
        if size % FUSED and product.device.type != "cpu":
            packed = F.pad(packed, (0, FUSED - size % FUSED))
        rows.turn_(packed[:, :, :2, :, : cos.shape[-1]], cos, sin)
        if n is not None:
            rows.lift_(packed, n)
            packed[:, :, 0, :, n:].neg_()
        ctx.save_for_backward(packed, cos, sin)
        ctx.n = n
        ctx.size = size
        ctx.width = product.shape[-1]
        return tuple(packed[:, :, i] for i in range(3))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        packed, cos, sin = ctx.saved_tensors
        b, length, _, heads, _ = packed.shape
        size = ctx.size
        whole = packed.new_zeros(b, length, ctx.width)
        found = whole[..., : 3 * heads * size].view(b, length, 3, heads, size)
        _through_time(torch.stack(grads, 2)[..., :size], packed[..., :size], ctx.n, found)
        rows.turn_(found[:, :, :2, :, : cos.shape[-1]], cos, sin, -1)
        return whole, None, None, None, None, None


def _through_time(grad: Tensor, x: Tensor, slot: int | None, out: Tensor) -> None:
    """Write the gradient with respect to the rows from which the points ``x`` were lifted into
    ``out``, from the gradient with respect to the points, whose times are last, in the ``slot``;
    there ``out`` keeps its zeros."""
    if slot is None:
        out.copy_(grad)
    else:
        ratio = grad[..., slot:] / x[..., slot:]
        torch.addcmul(grad[..., :slot], x[..., :slot], ratio, out=out[..., :slot])


def _interleaved(d: int, first: int = 0) -> list[int]:
    """Return where in our rows the ``d`` coordinates of a published head lie: published pairs are
    side by side, in our rows the second of all pairs follow the first of all."""
    return [first + i // 2 + i % 2 * (d // 2) for i in range(d)]


class _Attention(nn.Module):
    """The base of full and latent attention: the temperature, the centroids and the output
    projection."""

    bias: Tensor

    def __init__(
        self,
        config: Architecture,
        layer: int,
        head: int,
        value: int,
        temperature: float,
        turned: int,
    ):
        super().__init__()
        self.config = config
        self.layer = layer
        self.heads = config.n_heads
        self.head = head
        self.value = value
        self.lorentz = config.lorentz
        self.temperature = temperature
        self.rotary = Rotary(config, turned)
        self.joined = rounded_up(self.heads * value, config.pad)
        if self.lorentz:
            self.scale = nn.Parameter(torch.full((1,), temperature))
            # Published weights have this bias of the logits, which the softmax ignores.
            self.register_buffer("bias", torch.zeros(()))
        last = value - 1
        inside = [last, *range(last)] if self.lorentz else range(value)
        live = [h * value + i for h in range(self.heads) for i in inside]
        outer = Layout(config.dim, config)
        init = "torch" if config.attention == "full" else "xavier"
        self.out = RowLinear(self.joined, outer.width, live, outer.space, self.lorentz, init)

    def reset_parameters(self) -> None:
        """Initialise the temperature; the linear maps initialise themselves."""
        if self.lorentz:
            nn.init.constant_(self.scale, self.temperature)

    def scales(self) -> tuple[float, Tensor | None]:
        """Return the factor of the logits, and the number by which queries are divided or None."""
        factor = self.rotary.attention_factor
        if not self.lorentz:
            return factor * self.head**-0.5, None
        return 2 * factor, rows.upcast(self.scale)

    def _by_hand(self, x: Tensor) -> bool:
        return rows.by_hand(self.config.fused, x)

    def core(self, q: Tensor, k: Tensor, v: Tensor, context: Context, scale: float) -> Tensor:
        """Return the output rows without time ``(B, L, width)`` for queries, keys and values
        ``(B, L, H, d)``."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        half = self._half_type(q)
        if half is None:
            with exact(q.device):
                out = attend(q, k, v, scale, context)
        elif self.lorentz:
            out = _attend_half(q, k, v, q.shape[-1] - 1, self.value - 1, scale, context, half)
        else:
            out = attend(q.to(half), k.to(half), v.to(half), scale, context)
        return self.finish(out.transpose(1, 2))

    def _half_type(self, x: Tensor) -> torch.dtype | None:
        if is_autocast(x.device):
            return torch.get_autocast_dtype(x.device.type)
        dtype = self.out.weight.dtype
        return dtype if dtype in rows.HALF else None

    def finish(self, heads: Tensor) -> Tensor:
        """Return the output rows without time ``(B, L, width)`` for weighted sums
        ``(B, L, H, value or more)`` of the values of each head."""
        if self.lorentz:
            joined = rows.centroid(heads, self.value, self.joined, self.config.safe_clamp)
        else:
            joined = rows.join(rows.upcast(heads[..., : self.value]), self.joined)
        return apply_linear(self.out, joined)

    def weights(self, logits: Tensor, context: Context) -> Tensor:
        """Return the softmax of the logits ``(B, H, L, all)`` over the tokens to which a token may
        attend."""
        if context.mask is not None:
            logits = logits.masked_fill(~context.mask, float("-inf"))
        return logits.softmax(-1)


class FullAttention(_Attention):
    """Multi-head attention with keys and values of every head."""

    def __init__(self, config: Architecture, layer: int):
        size = config.dim // config.n_heads
        h = config.n_heads
        self.d = size - 1  # the coordinates that RoPE turns, also in Euclidean heads
        super().__init__(config, layer, size, size, config.dim**0.5, self.d)
        outer = Layout(config.dim, config)
        space = size - 1 if self.lorentz else size
        turned = [*_interleaved(self.d), *range(self.d, space)]
        live = [
            (part * h + head) * size + i
            for part in range(3)
            for head in range(h)
            for i in (turned if part < 2 else range(space))
        ]
        width = rounded_up(3 * h * size, config.pad)
        self.qkv = RowLinear(outer.width, width, outer.ambient, live, self.lorentz, "torch")

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return queries, keys and values ``(B, L, H, d)``, rotated and with times, and the factor
        of the logits."""
        product = rows.upcast(apply_linear(self.qkv, x))
        cos, sin = (t[:, None, None] for t in self.rotary(start, x.shape[1], x.device))
        scale, divisor = self.scales()
        n = self.head - 1 if self.lorentz else None
        if self._by_hand(product):
            q, k, v = _Heads.apply(product, cos, sin, self.heads, self.head, n)
        else:
            packed = product[..., : 3 * self.heads * self.head].unflatten(
                -1, (3, self.heads, self.head)
            )
            turned = rows.turn(packed[:, :, :2, :, : self.d], cos, sin).to(packed.dtype)
            packed = torch.cat(
                [torch.cat([turned, packed[:, :, :2, :, self.d :]], -1), packed[:, :, 2:]], 2
            )
            q, k, v = (rows.lift(part, n) for part in packed.unbind(2))
            if n is not None:
                q = torch.cat([q[..., :n], -q[..., n:]], -1)
        return (q if divisor is None else divided(q, divisor)), k, v, scale

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Return output rows without time ``(B, L, width)`` for points ``x`` of that shape."""
        q, k, v, scale = self.project(x, context.start)
        if context.cache is not None:
            space = self.head - 1 if self.lorentz else self.head
            keys, values = (part[..., :space].transpose(1, 2) for part in (k, v))
            keys, values = context.remember(
                context.marked(keys).contiguous(), values.contiguous(), self.layer
            )
            if context.start:
                with exact(q.device):  # autocast would sum in half precision
                    heads = self._decode(
                        q.transpose(1, 2), rows.upcast(keys), rows.upcast(values), context, scale
                    )
                return self.finish(heads)
        return self.core(q, k, v, context, scale)

    def _decode(
        self, q: Tensor, keys: Tensor, values: Tensor, context: Context, scale: float
    ) -> Tensor:
        """Return the means ``(B, L, H, d)`` of the values of all tokens for new queries
        ``(B, H, L, d)``; keys and values are space parts ``(B, H, all, d - 1)``."""
        space = keys.shape[-1]
        values = context.weighed(values)
        logits = q[..., :space] @ keys.mT
        if self.lorentz:
            logits = logits + q[..., space : space + 1] * _time(keys).unsqueeze(-2)
            values = torch.cat([values, _time(values).unsqueeze(-1)], -1)
        return (self.weights(logits * scale, context) @ values).transpose(1, 2)


class _LatentHeads(Function):
    """Compute the heads of latent attention in place: write the rotated key and the times into free
    slots of the products."""

    @staticmethod
    def forward(ctx, query, pair, k_pe, cos, sin, heads, nope, value, timed):
        b, length, _ = query.shape
        d = k_pe.shape[-1]
        size = nope + d + timed
        n = nope + d
        q = query.detach()[..., : heads * size].view(b, length, heads, size)
        both = pair.detach()[..., : 2 * heads * size].view(b, length, 2, heads, size)
        k = both[:, :, 0]
        v = both[:, :, 1]
        rows.turn_(q[..., nope:n], cos, sin)
        k[..., nope:n] = rows.turn(k_pe, cos[:, 0], sin[:, 0])[:, :, None]
        if timed:
            rows.lift_(q, n)
            q[..., n].neg_()
            rows.lift_(k, n)
            rows.lift_(v[..., :value], value - 1)
        ctx.save_for_backward(q, k, v, cos, sin)
        ctx.sizes = (nope, n, value, timed)
        ctx.widths = (query.shape[-1], pair.shape[-1])
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx, by_q, by_k, by_v):
        q, k, v, cos, sin = ctx.saved_tensors
        nope, n, value, timed = ctx.sizes
        b, length, heads, size = q.shape
        by_query, by_pair = (q.new_zeros(b, length, width) for width in ctx.widths)
        to_q = by_query[..., : heads * size].view(q.shape)
        to_k, to_v = by_pair[..., : 2 * heads * size].view(b, length, 2, heads, size).unbind(2)
        for grad, x, slot, out in (
            (by_q, q, n, to_q),
            (by_k, k, n, to_k),
            (by_v[..., :value], v[..., :value], value - 1, to_v[..., :value]),
        ):
            _through_time(grad, x, slot if timed else None, out)
        rows.turn_(to_q[..., nope:n], cos, sin, -1)
        to_rotated = to_k[..., nope:n]
        by_pe = rows.turn(to_rotated.sum(2), cos[:, 0], -sin[:, 0])
        to_rotated.zero_()
        return by_query, by_pair, by_pe, None, None, None, None, None, None


class LatentAttention(_Attention):
    """HMLA: keys and values of all heads are linear maps of one latent point, and one rotated key
    serves all heads."""

    def __init__(self, config: Architecture, layer: int):
        h = config.n_heads
        nope = config.qk_nope_head_dim
        d = config.qk_rope_head_dim - 1
        self.nope = nope
        self.d = d
        self.timed = int(config.lorentz)
        temperature = (h * (nope + config.qk_rope_head_dim)) ** 0.5
        super().__init__(config, layer, nope + d + self.timed, config.v_head_dim, temperature, d)
        outer = Layout(config.dim, config)
        rank = config.kv_lora_rank
        pad = config.pad
        self.latent = Layout(rank + self.timed, config)
        self.q_latent = (
            Layout(config.q_lora_rank + self.timed, config) if config.q_lora_rank else None
        )
        queries = [
            i * self.head + j for i in range(h) for j in (*range(nope), *_interleaved(d, nope))
        ]
        self.query_width = rounded_up(h * self.head, pad)
        # The published matrices wq (or wq_a) and wkv_a are one matrix here, whose output is queries
        # (or their latent row), latent row and rotated key.
        asked = queries if self.q_latent is None else self.q_latent.space
        first = self.query_width if self.q_latent is None else self.q_latent.width
        begin = first + self.latent.width
        down = [*asked, *range(first, first + self.latent.size), *_interleaved(d, begin)]
        width = rounded_up(begin + d, pad)
        self.splits = (first, self.latent.width, d, width - begin - d)
        joined = [len(asked), len(down) - len(asked)]
        self.down = RowLinear(
            outer.width, width, outer.ambient, down, config.lorentz, joined=joined
        )
        self.kv_norm = RowNorm(self.latent, config.rms_eps)
        # In the published order keys and values of one head come before those of the next.
        pairs: list[int] = []
        for key in range(0, h * self.head, self.head):
            value = h * self.head + key
            pairs += [*range(key, key + nope), *range(value, value + self.value - self.timed)]
        self.up = RowLinear(
            self.latent.width,
            rounded_up(2 * h * self.head, pad),
            self.latent.ambient,
            pairs,
            config.lorentz,
        )
        if self.q_latent is not None:
            self.q_norm = RowNorm(self.q_latent, config.rms_eps)
            self.q_up = RowLinear(
                self.q_latent.width,
                self.query_width,
                self.q_latent.ambient,
                queries,
                config.lorentz,
            )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries ``(B, L, query_width)``, latent points, and keys ``(B, L, d)`` for RoPE,
        none of them rotated."""
        query, latent, k_pe, _ = rows.upcast(apply_linear(self.down, x)).split(self.splits, -1)
        if self.q_latent is not None:
            query = rows.upcast(apply_linear(self.q_up, self.q_norm(query)))
        return query, self.kv_norm(latent), k_pe

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Return output rows without time ``(B, L, width)`` for points ``x`` of that shape."""
        query, latent, k_pe = self.project(x)
        cos, sin = (t[:, None] for t in self.rotary(context.start, x.shape[1], x.device))
        scale, divisor = self.scales()
        if context.cache is not None and context.start:
            with exact(x.device):  # autocast would sum in half precision
                heads = self._absorbed(query, latent, k_pe, cos, sin, scale, divisor, context)
            return self.finish(heads)
        q, k, v = self.expand(query, latent, k_pe, cos, sin)
        q = q if divisor is None else divided(q, divisor)
        if context.cache is not None:
            rotated = rows.turn(k_pe, cos[:, 0], sin[:, 0])
            times = [k[..., self.nope + self.d], v[..., self.value - 1]] if self.timed else []
            self._remember(latent, rotated, times, context)
        return self.core(q, k, v, context, scale)

    def _parted(self, pair: Tensor) -> Tensor:
        """Return the output ``pair`` of :attr:`up` as ``(B, L, 2, H, head)``: keys without their
        rotated part, and values."""
        return pair[..., : 2 * self.heads * self.head].unflatten(-1, (2, self.heads, self.head))

    def expand(
        self,
        query: Tensor,
        latent: Tensor,
        k_pe: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values ``(B, L, H, head)``, rotated and with times."""
        pair = rows.upcast(apply_linear(self.up, latent))
        if self._by_hand(pair):
            # The query is copied, because each head overwrites its part.
            query = query.clone(memory_format=torch.contiguous_format)
            return _LatentHeads.apply(
                query, pair, k_pe, cos, sin, self.heads, self.nope, self.value, self.timed
            )
        n = self.nope + self.d
        q = self._rotated(query, cos, sin)
        k, v = self._parted(pair).unbind(2)
        rotated = (
            rows.turn(k_pe, cos[:, 0], sin[:, 0])[:, :, None]
            .expand(-1, -1, self.heads, -1)
            .to(k.dtype)
        )
        k = torch.cat([k[..., : self.nope], rotated, k[..., n:]], -1)
        if self.timed:
            q = rows.lift(q, n)
            k = rows.lift(k, n)
            v = rows.lift(v, self.value - 1)
            q = torch.cat([q[..., :n], -q[..., n:]], -1)
        return q, k, v

    def _rotated(self, query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries ``(B, L, H, head)`` with their second part rotated, without times."""
        q = query[..., : self.heads * self.head].unflatten(-1, (self.heads, self.head))
        n = self.nope + self.d
        turned = rows.turn(q[..., self.nope : n], cos, sin).to(q.dtype)
        return torch.cat([q[..., : self.nope], turned, q[..., n:]], -1)

    # Latent attention with a cache

    def _remember(
        self, latent: Tensor, k_pe: Tensor, times: list[Tensor], context: Context
    ) -> tuple[Tensor, Tensor]:
        """Add new tokens to the cache; return for all tokens the latent space parts
        ``(B, 1, all, rank)``, and the rotated keys with the heads' times
        ``(B, 1, all, d + 2 H)``."""
        second = torch.cat([context.marked(k_pe), *times], -1)[:, None]
        return context.remember(
            latent[:, None, :, : self.latent.size].contiguous(), second, self.layer
        )

    def _up_map(self, latent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias of :attr:`up`; those of an adapter in its place are found
        by its outputs for the unit vectors."""
        if isinstance(self.up, RowLinear):
            return rows.upcast(self.up.weight), None if self.up.bias is None else rows.upcast(
                self.up.bias
            )
        eye = torch.eye(latent.shape[-1], device=latent.device, dtype=latent.dtype)
        bias, found = (
            rows.upcast(apply_linear(self.up, x)) for x in (torch.zeros_like(eye[:1]), eye)
        )
        return (found - bias).mT, bias[0]

    def _absorbed(
        self,
        query: Tensor,
        latent: Tensor,
        k_pe: Tensor,
        cos: Tensor,
        sin: Tensor,
        scale: float,
        divisor: Tensor | None,
        context: Context,
    ) -> Tensor:
        """Return the means ``(B, L, H, value)`` of the values without computing keys and values:
        their linear maps are applied to the query and to the mean.

        The times are not linear in the latent point, so the cache stores them.
        """
        nope = self.nope
        n = self.nope + self.d
        size = self.value - self.timed
        rank = self.latent.size
        weight, bias = self._up_map(latent)
        q = self._rotated(query, cos, sin)
        rotated = rows.turn(k_pe, cos[:, 0], sin[:, 0])
        times = []
        if self.timed:  # the times of the new keys and values
            k, v = self._parted(F.linear(latent, weight, bias)).unbind(2)
            key_space = torch.cat(
                [k[..., :nope], rotated[:, :, None].expand(-1, -1, self.heads, -1)], -1
            )
            times = [_time(key_space), _time(v[..., :size])]
        keys, values = (
            rows.upcast(x[:, 0]) for x in self._remember(latent, rotated, times, context)
        )
        keys = context.weighed(keys)
        all_times = context.weighed(values[..., self.d :])
        q = q.transpose(1, 2)
        q_time = _time(q[..., :n])
        if divisor is not None:
            q = q / divisor
            q_time = q_time / divisor
        key_map, value_map = weight[: 2 * self.heads * self.head].view(2, self.heads, self.head, -1)
        to_latent = torch.einsum("bhln,hnr->bhlr", q[..., :nope], key_map[:, :nope])
        logits = _shared(to_latent[..., :rank], keys) + _shared(
            q[..., nope:n], values[..., : self.d]
        )
        latent_time = _time(keys)
        if self.timed:
            logits = logits + to_latent[..., rank : rank + 1] * latent_time[:, None, None]
            logits = logits - q_time[..., None] * all_times[..., : self.heads].mT[:, :, None]
        p = self.weights(logits * scale, context)
        value_map = value_map[:, :size]
        out = torch.einsum("bhlr,hnr->bhln", _shared(p, keys.mT), value_map[..., :rank])
        if bias is not None:
            out = (
                out
                + bias[self.heads * self.head :][: self.heads * self.head].view(self.heads, 1, -1)[
                    ..., :size
                ]
            )
        if self.timed:
            out = out + (p @ latent_time[:, None, :, None]) * value_map[..., rank][:, None]
            out = torch.cat([out, p @ all_times[..., self.heads :].mT[..., None]], -1)
        return out.transpose(1, 2)


def _shared(q: Tensor, keys: Tensor) -> Tensor:
    """Return the products ``(B, H, L, all)`` of queries ``(B, H, L, d)`` with keys ``(B, all, d)``
    that all heads share."""
    return (q.flatten(1, 2) @ keys.mT).unflatten(1, q.shape[1:3])
