r"""Attention by squared Lorentz distances: full (HELM-D) and latent (HELM-MiCE's HMLA).

The logits are :math:`(2 + 2\langle q, k\rangle_L)/f` with a learned ``f``, the results centroids. What is constant in a
row falls out of the softmax, so :math:`Q = [q_s, -q_t], K = [k_s, k_t], V = [v_s, v_t]` go through
``scaled_dot_product_attention`` with the scale ``2/f``. The cache holds space parts; of latent attention the latent
vector, the rotated key and two times a head, from which keys and values are never built again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hypvision.geometry.numerics import Function

from . import rows
from .config import Architecture
from .layers import Layout, RowLinear, RowNorm, apply_linear
from .rotary import Rotary

__all__ = ["Context", "FullAttention", "LatentAttention", "attend"]


class Context(NamedTuple):
    """What tokens may see.

    Attributes:
        start: position of the first token; so many are in the cache.
        mask: ``(B, 1, L, start + L)``, True where a token looks; None for all before it.
        lengths: of the documents, one after the other over all rows; None for one a row.
        cache: with ``update(keys, values, layer)``, or None.
        documents: numbers ``(B, L)`` of the documents that ``lengths`` are of, -1 for padding; or None.
        broken: ``(B, L)``, True for tokens whose embeddings are not finite; the rows are those of other points. None
            if there are none.
    """

    start: int = 0
    mask: Tensor | None = None
    lengths: Sequence[int] | None = None
    cache: object | None = None
    documents: Tensor | None = None
    broken: Tensor | None = None

    def sees_broken(self) -> Tensor:
        """Which tokens ``(B, L)`` see one of those that are broken, themselves included."""
        if self.mask is not None:
            return (self.mask[:, 0, :, self.start :] & self.broken[:, None]).any(-1)
        count = self.broken.long().cumsum(1)
        if self.documents is not None:
            begins = F.pad(self.documents[:, 1:] != self.documents[:, :-1], (min(1, count.shape[1]), 0))
            place = torch.arange(count.shape[1], device=count.device)
            begin = torch.where(begins, place, 0).cummax(1).values
            count = count - (count - self.broken.long()).gather(1, begin)
        return count > 0

    def marked(self, keys: Tensor) -> Tensor:
        """What only logits are made of, for a cache: NaN of broken tokens ``(B, ..., L, d)``, which all find that see
        them."""
        if self.broken is None:
            return keys
        return keys.masked_fill(self.broken.view(len(keys), *[1] * (keys.dim() - 3), keys.shape[-2], 1), float("nan"))

    def weighed(self, values: Tensor) -> Tensor:
        """What means are of, out of a cache: the weights of 0 that a mask makes must not meet NaN."""
        return values if self.mask is None else values.masked_fill(values.isnan(), 0.0)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, context: Context) -> Tensor:
    """``scaled_dot_product_attention`` of ``(B, H, L, d)`` within documents; no (L, L) mask for them.

    Each document is a call of its own over its own tokens: less work than one masked call, in place of more.
    """
    if context.lengths is not None and len(context.lengths) > q.shape[0]:
        whole = q.shape
        # documents lie one after the other in the rows, and the rows one after the other
        parts = [x.transpose(1, 2).flatten(0, 1).split(list(context.lengths)) for x in (q, k, v)]
        found = [
            F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in part), is_causal=True, scale=scale)
            for part in zip(*parts)
        ]
        joined = torch.cat([x[0].transpose(0, 1) for x in found])
        return joined.view(whole[0], whole[2], whole[1], v.shape[-1]).transpose(1, 2)
    if context.mask is not None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=context.mask, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(q.shape[2] > 1), scale=scale)


def _attend_half(q: Tensor, k: Tensor, v: Tensor, n: int, m: int, scale: float, context: Context, dtype) -> Tensor:
    """:func:`attend` in half precision, of points whose times, in slots ``n`` and ``m``, are far above 1.

    The softmax does not see a shift of all key times, and a mean takes one of all value times along; without them the
    digits go to what differs.
    """
    shift_k = k[..., n].mean(-1, keepdim=True).detach()
    shift_v = v[..., m].mean(-1, keepdim=True).detach()
    k = torch.cat([k[..., :n], (k[..., n] - shift_k).unsqueeze(-1), k[..., n + 1 :]], -1)
    v = torch.cat([v[..., :m], (v[..., m] - shift_v).unsqueeze(-1), v[..., m + 1 :]], -1)
    with torch.autocast(q.device.type, enabled=False):
        out = attend(q.to(dtype), k.to(dtype), v.to(dtype), scale, context).to(q.dtype)
    return torch.cat([out[..., :m], (out[..., m] + shift_v).unsqueeze(-1), out[..., m + 1 :]], -1)


def _rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    rows.turn(x, cos, sin, out=x)


class _Heads(Function):
    """The heads of full attention out of one product, which becomes them: rotated, with times."""

    @staticmethod
    def forward(ctx, product, f, cos, sin, heads, size, n):
        b, length, _ = product.shape
        packed = product.detach()[..., : 3 * heads * size].view(b, length, 3, heads, size)
        d = 2 * cos.shape[-1]
        _rotate_(packed[:, :, :2, :, :d], cos, sin)
        if n is not None:
            packed[..., n:] = torch.sqrt(torch.linalg.vector_norm(packed[..., :n], dim=-1, keepdim=True).square_() + 1)
            packed[:, :, 0, :, n:].neg_()
        ctx.save_for_backward(packed, f, cos, sin)
        ctx.n, ctx.width = n, product.shape[-1]
        return tuple(packed[:, :, i] for i in range(3))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        packed, f, cos, sin = ctx.saved_tensors
        b, length, _, heads, size = packed.shape
        whole = packed.new_empty(b, length, ctx.width)
        whole[..., 3 * heads * size :] = 0
        found = whole[..., : 3 * heads * size].view(packed.shape)
        n, d = ctx.n, 2 * cos.shape[-1]
        for i, grad in enumerate(grads):
            part, x = found[:, :, i], packed[:, :, i]
            if n is None:
                part.copy_(grad)
            else:
                torch.addcmul(grad, x, grad[..., n:] / x[..., n:], out=part)
                part[..., n] = 0
        _rotate_(found[:, :, :2, :, :d], cos, -sin)
        by_f = (
            None if f is None or not ctx.needs_input_grad[1] else (-(grads[0] * packed[:, :, 0]).sum() / f).view_as(f)
        )
        return whole, by_f, None, None, None, None, None


class _Attention(nn.Module):
    """What both kinds share: the temperature, centroids and the last product."""

    def __init__(self, config: Architecture, layer: int, head: int, value: int, temperature: float):
        super().__init__()
        self.config, self.layer, self.heads, self.head, self.value = config, layer, config.n_heads, head, value
        self.lorentz = config.lorentz
        width = -(-self.heads * value // config.pad) * config.pad
        self.joined = width
        self.temperature = temperature
        if self.lorentz:
            self.scale = nn.Parameter(torch.full((1,), temperature))
            # published with the logits; the softmax does not see it
            self.register_buffer("bias", torch.zeros(()))
        last = value - 1
        inside = [last, *range(last)] if self.lorentz else range(value)
        live = [h * value + i for h in range(self.heads) for i in inside]
        outer = Layout(config.dim, config)
        init = "torch" if config.attention == "full" else "xavier"
        self.out = RowLinear(width, outer.width, live, outer.space, self.lorentz, init)

    def reset_parameters(self) -> None:
        """The temperature; the maps have their own."""
        if self.lorentz:
            nn.init.constant_(self.scale, self.temperature)

    def scales(self, q: Tensor) -> tuple[float, Tensor | None]:
        """The factor of the logits, and the factor of Q where the first may not be a number: where asking for it
        would hold up a GPU or a compiler, and where the logits are differentiated by plain operations."""
        factor = self.rotary.attention_factor
        if not self.lorentz:
            return factor * self.head**-0.5, None
        if self._by_hand(q) and q.device.type == "cpu":
            return factor * 2 / self.scale.item(), None
        return factor, 2 / rows.upcast(self.scale)

    def _by_hand(self, x: Tensor) -> bool:
        return rows.by_hand(self.config.fused, x)

    def core(self, q: Tensor, k: Tensor, v: Tensor, context: Context, scale: float, last: int) -> Tensor:
        """Points ``(B, L, H, d)`` to joined rows ``(B, L, width)``; the time of a value is in slot ``last``."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        half = self._half_type(q)
        if half is None:
            with torch.autocast(q.device.type, enabled=False):
                out = attend(q, k, v, scale, context)
        elif self.lorentz:
            out = _attend_half(q, k, v, q.shape[-1] - 1, last, scale, context, half)
        else:
            out = attend(q.to(half), k.to(half), v.to(half), scale, context)
        return self.finish(out.transpose(1, 2))

    def _half_type(self, x: Tensor) -> torch.dtype | None:
        if torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        dtype = self.out.weight.dtype
        return dtype if dtype in rows.HALF else None

    def finish(self, heads: Tensor) -> Tensor:
        """Weighted sums ``(B, L, H, value or more)`` to rows without time ``(B, L, width)``."""
        if self.lorentz:
            joined = rows.centroid(heads, self.value, self.joined, self.config.safe_clamp, self.config.fused)
        else:
            joined = rows.join(rows.upcast(heads[..., : self.value]), self.joined)
        return apply_linear(self.out, joined)

    def weights(self, logits: Tensor, context: Context) -> Tensor:
        """Softmax of the logits ``(B, H, L, all)`` over what a token may see."""
        if context.mask is not None:
            logits = logits.masked_fill(~context.mask, float("-inf"))
        return logits.softmax(-1)


class FullAttention(_Attention):
    """Multi-head attention with keys and values of every head."""

    def __init__(self, config: Architecture, layer: int):
        size = config.dim // config.n_heads
        super().__init__(config, layer, size, size, config.dim**0.5)
        outer, h = Layout(config.dim, config), config.n_heads
        self.d = size - 1  # rotated, of Euclidean heads as well
        self.rotary = Rotary(config, self.d)
        width = -(-3 * h * size // config.pad) * config.pad
        space = size - 1 if self.lorentz else size
        half = self.d // 2
        turned = [i // 2 + i % 2 * half for i in range(self.d)] + list(range(self.d, space))
        live = [
            (part * h + head) * size + i
            for part in range(3)
            for head in range(h)
            for i in (turned if part < 2 else range(space))
        ]
        self.qkv = RowLinear(outer.width, width, outer.ambient, live, self.lorentz, "torch")

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, float]:
        """Queries, keys and values ``(B, L, H, d)``, rotated and with times, and the factor of the logits."""
        product = rows.upcast(apply_linear(self.qkv, x))
        cos, sin = (t[:, None] for t in self.rotary(start, x.shape[1], x.device))
        scale, factor = self.scales(product)
        n = self.head - 1 if self.lorentz else None
        if self._by_hand(product):
            f = self.scale if self.lorentz and factor is None else None
            q, k, v = _Heads.apply(product, f, cos[:, None], sin[:, None], self.heads, self.head, n)
        else:
            packed = product[..., : 3 * self.heads * self.head].unflatten(-1, (3, self.heads, self.head))
            turned = rows.turn(packed[:, :, :2, :, : self.d], cos[:, None], sin[:, None]).to(packed.dtype)
            packed = torch.cat([torch.cat([turned, packed[:, :, :2, :, self.d :]], -1), packed[:, :, 2:]], 2)
            q, k, v = packed.unbind(2)
            if self.lorentz:
                q, k, v = (rows._with_time(part, n) for part in (q, k, v))
                q = torch.cat([q[..., :n], -q[..., n:]], -1)
        return (q if factor is None else q * factor), k, v, scale

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Points ``(B, L, width)`` to rows without time."""
        q, k, v, scale = self.project(x, context.start)
        if context.cache is None:
            return self.core(q, k, v, context, scale, self.head - 1)
        space = self.head - 1 if self.lorentz else self.head
        keys, values = (part[..., :space].transpose(1, 2) for part in (k, v))
        keys, values = context.cache.update(context.marked(keys).contiguous(), values.contiguous(), self.layer)
        if context.start == 0:
            return self.core(q, k, v, context, scale, self.head - 1)
        with torch.autocast(q.device.type, enabled=False):  # which would sum in half precision
            heads = self._decode(q.transpose(1, 2), rows.upcast(keys), rows.upcast(values), context, scale, space)
        return self.finish(heads)

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, context: Context, scale: float, space: int) -> Tensor:
        """New queries ``(B, H, L, d)`` and all space parts ``(B, H, all, d - 1)`` to means ``(B, L, H, d)``."""
        logits, values = q[..., :space] @ keys.mT, context.weighed(values)
        if self.lorentz:
            key_time, value_time = (torch.sqrt(_square(part) + 1) for part in (keys, values))
            logits = logits + q[..., space:] * key_time.unsqueeze(-2)
        p = self.weights(logits * scale, context)
        out = p @ values
        if self.lorentz:
            out = torch.cat([out, p @ value_time.unsqueeze(-1)], -1)
        return out.transpose(1, 2)


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).square()


class _LatentHeads(Function):
    """The heads of latent attention: the rotated key goes into the room that the product leaves, times into slots."""

    @staticmethod
    def forward(ctx, query, pair, k_pe, f, cos, sin, heads, nope, value, timed):
        b, length, _ = query.shape
        d = k_pe.shape[-1]
        size, n = nope + d + timed, nope + d
        q = query.detach()[..., : heads * size].view(b, length, heads, size)
        both = pair.detach()[..., : 2 * heads * size].view(b, length, 2, heads, size)
        k, v = both[:, :, 0], both[:, :, 1]
        _rotate_(q[..., nope:n], cos, sin)
        k[..., nope:n] = rows.turn(k_pe, cos[:, 0], sin[:, 0])[:, :, None]
        if timed:
            for x in (q, k):
                x[..., n:] = torch.sqrt(torch.linalg.vector_norm(x[..., :n], dim=-1, keepdim=True).square_() + 1)
            q[..., n:].neg_()
            space = v[..., : value - 1]
            v[..., value - 1] = torch.sqrt(torch.linalg.vector_norm(space, dim=-1).square_() + 1)
        ctx.save_for_backward(q, k, v, f, cos, sin)
        ctx.sizes, ctx.widths = (nope, n, value, timed), (query.shape[-1], pair.shape[-1])
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx, by_q, by_k, by_v):
        q, k, v, f, cos, sin = ctx.saved_tensors
        nope, n, value, timed = ctx.sizes
        b, length, heads, size = q.shape
        by_query, by_pair = (q.new_empty(b, length, width) for width in ctx.widths)
        by_query[..., heads * size :] = 0
        by_pair[..., 2 * heads * size :] = 0
        to_q = by_query[..., : heads * size].view(q.shape)
        both = by_pair[..., : 2 * heads * size].view(b, length, 2, heads, size)
        slots = ((to_q, by_q, q, n), (both[:, :, 0], by_k, k, n), (both[:, :, 1], by_v, v, value - 1))
        for part, grad, x, slot in slots:
            if timed:
                torch.addcmul(grad, x, grad[..., slot : slot + 1] / x[..., slot : slot + 1], out=part)
                part[..., slot] = 0
            else:
                part.copy_(grad)
        both[:, :, 1, :, value - timed :] = 0
        _rotate_(to_q[..., nope:n], cos, -sin)
        room = both[:, :, 0, :, nope:n]
        by_pe = rows.turn(room.sum(2), cos[:, 0], -sin[:, 0])
        room.zero_()
        by_f = None if f is None or not ctx.needs_input_grad[3] else (-(by_q * q).sum() / f).view_as(f)
        return by_query, by_pair, by_pe, by_f, None, None, None, None, None, None


class LatentAttention(_Attention):
    """HMLA: keys and values of all heads are maps of one latent point, and one rotated key serves them all."""

    def __init__(self, config: Architecture, layer: int):
        h, nope, d = config.n_heads, config.qk_nope_head_dim, config.qk_rope_head_dim - 1
        timed = int(config.lorentz)
        temperature = (h * (nope + config.qk_rope_head_dim)) ** 0.5
        super().__init__(config, layer, nope + d + timed, config.v_head_dim, temperature)
        self.nope, self.d, self.timed = nope, d, timed
        self.rotary = Rotary(config, d)
        outer, rank, pad = Layout(config.dim, config), config.kv_lora_rank, config.pad
        self.latent = Layout(rank + timed, config)
        self.q_latent = Layout(config.q_lora_rank + timed, config) if config.q_lora_rank else None
        turned = [nope + i // 2 + i % 2 * (d // 2) for i in range(d)]
        head = [*range(nope), *turned]
        self.query_width = -(-h * self.head // pad) * pad
        queries = [i * self.head + j for i in range(h) for j in head]
        first = self.query_width if self.q_latent is None else self.q_latent.width
        begin = first + self.latent.width  # of the rotated key
        asked = queries if self.q_latent is None else self.q_latent.space
        down = [
            *asked,
            *(first + i for i in self.latent.space),
            *(begin + i // 2 + i % 2 * (d // 2) for i in range(d)),
        ]
        width = -(-(begin + d) // pad) * pad
        self.splits = (first, self.latent.width, d, width - begin - d)
        # wq (or its first half) and wkv_a in one
        joined = [len(asked), len(down) - len(asked)]
        self.down = RowLinear(outer.width, width, outer.ambient, down, config.lorentz, joined=joined)
        self.kv_norm = RowNorm(self.latent, config.rms_eps)
        keys = [i * self.head + j for i in range(h) for j in range(nope)]
        values = [(h + i) * self.head + j for i in range(h) for j in range(config.v_head_dim - timed)]
        # the published order: the keys and values of a head, then those of the next
        count = config.v_head_dim - timed
        pairs = [
            place
            for i in range(h)
            for place in (*keys[i * nope : (i + 1) * nope], *values[i * count : (i + 1) * count])
        ]
        self.pair_width = -(-2 * h * self.head // pad) * pad
        self.up = RowLinear(self.latent.width, self.pair_width, self.latent.ambient, pairs, config.lorentz)
        if self.q_latent is not None:
            self.q_norm = RowNorm(self.q_latent, config.rms_eps)
            self.q_up = RowLinear(self.q_latent.width, self.query_width, self.q_latent.ambient, queries, config.lorentz)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``(B, L, query_width)``, latent points, and rotary keys ``(B, L, d)``, none of them rotated."""
        query, latent, k_pe, _ = rows.upcast(apply_linear(self.down, x)).split(self.splits, -1)
        if self.q_latent is not None:
            query = rows.upcast(apply_linear(self.q_up, self.q_norm(query)))
        return query, self.kv_norm(latent), k_pe

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Points ``(B, L, width)`` to rows without time."""
        query, latent, k_pe = self.project(x)
        cos, sin = (t[:, None] for t in self.rotary(context.start, x.shape[1], x.device))
        scale, factor = self.scales(query)
        if context.cache is not None and context.start and isinstance(self.up, RowLinear):
            with torch.autocast(x.device.type, enabled=False):  # which would sum in half precision
                heads = self._absorbed(query, latent, k_pe, cos, sin, scale, factor, context)
            return self.finish(heads)
        f = self.scale if self.lorentz and factor is None else None
        q, k, v = self.expand(query, latent, k_pe, cos, sin, f)
        q = q if factor is None else q * factor
        if context.cache is not None:
            rotated = rows.turn(k_pe, cos[:, 0], sin[:, 0])
            keys, values = self._remember(latent, rotated, k, v, context)
            if context.start:  # an adapter is on the way up: everything is built again
                return self._rebuilt(q, rows.upcast(keys[:, 0]), rows.upcast(values[:, 0]), scale, context)
        return self.core(q, k, v, context, scale, self.value - 1)

    def expand(
        self, query: Tensor, latent: Tensor, k_pe: Tensor, cos: Tensor, sin: Tensor, f: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(B, L, H, head)``, rotated and with times."""
        pair = rows.upcast(apply_linear(self.up, latent))
        if self._by_hand(pair):
            query = query.clone(memory_format=torch.contiguous_format)  # which becomes the heads
            return _LatentHeads.apply(query, pair, k_pe, f, cos, sin, self.heads, self.nope, self.value, self.timed)
        n = self.nope + self.d
        q = self._rotated(query, cos, sin)
        both = pair[..., : 2 * self.heads * self.head].unflatten(-1, (2, self.heads, self.head))
        k, v = both.unbind(2)
        room = rows.turn(k_pe, cos[:, 0], sin[:, 0])[:, :, None].expand(-1, -1, self.heads, -1).to(k.dtype)
        k = torch.cat([k[..., : self.nope], room, k[..., n:]], -1)
        if self.timed:
            q, k, v = rows._with_time(q, n), rows._with_time(k, n), rows._with_time(v, self.value - 1)
            q = torch.cat([q[..., :n], -q[..., n:]], -1)
        return q, k, v

    def _rotated(self, query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries ``(B, L, H, head)`` with their second part rotated, without times."""
        q, n = query[..., : self.heads * self.head].unflatten(-1, (self.heads, self.head)), self.nope + self.d
        turned = rows.turn(q[..., self.nope : n], cos, sin).to(q.dtype)
        return torch.cat([q[..., : self.nope], turned, q[..., n:]], -1)

    # With a cache

    def _remember(self, latent: Tensor, k_pe: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Latent space parts ``(B, 1, all, rank)``; rotated keys with the heads' times ``(B, 1, all, d + 2 H)``."""
        times = [k[..., self.nope + self.d], v[..., self.value - 1]] if self.timed else []
        second = torch.cat([context.marked(k_pe), *times], -1)[:, None]
        first = latent[:, None, :, : self.latent.size].contiguous()
        return context.cache.update(first, second, self.layer)

    def _weights_up(self) -> tuple[Tensor, Tensor | None]:
        """The map from the latent row to keys and values ``(2, H, head, width)``, and its bias ``(2, H, head)``."""
        count = 2 * self.heads * self.head
        shape = (2, self.heads, self.head)
        bias = None if self.up.bias is None else rows.upcast(self.up.bias)[:count].view(shape)
        return rows.upcast(self.up.weight)[:count].view(*shape, -1), bias

    def _absorbed(
        self,
        query: Tensor,
        latent: Tensor,
        k_pe: Tensor,
        cos: Tensor,
        sin: Tensor,
        scale: float,
        factor: Tensor | None,
        context: Context,
    ) -> Tensor:
        """Means ``(B, L, H, value)`` without keys and values: their maps go to the query before and behind the mean.

        The times are no linear maps of the latent point, therefore the cache has them.
        """
        weight, bias = self._weights_up()
        new = torch.einsum("blr,xhnr->blxhn", latent, weight)
        new = new if bias is None else new + bias
        q, rotated = self._rotated(query, cos, sin), rows.turn(k_pe, cos[:, 0], sin[:, 0])
        n, size = self.nope + self.d, self.value - self.timed
        k, v = new.unbind(2)
        if self.timed:
            key_space = torch.cat([k[..., : self.nope], rotated[:, :, None].expand(-1, -1, self.heads, -1)], -1)
            k, v = (F.pad(part, (0, 1)) for part in (key_space, v[..., :size]))
            k, v = rows._with_time(k, n), rows._with_time(v, size)
        keys, values = (rows.upcast(x[:, 0]) for x in self._remember(latent, rotated, k, v, context))
        keys, times = context.weighed(keys), context.weighed(values[..., self.d :])
        q = q.transpose(1, 2)
        q = q if factor is None else q * factor
        to_latent = torch.einsum("bhln,hnr->bhlr", q[..., : self.nope], weight[0, :, : self.nope])
        rank = self.latent.size
        logits = _shared(to_latent[..., :rank], keys) + _shared(q[..., self.nope : n], values[..., : self.d])
        if self.timed:
            time = torch.sqrt(_square(keys) + 1)  # of the latent points
            logits = logits + to_latent[..., rank : rank + 1] * time[:, None, None]
            q_time = torch.sqrt(_square(q[..., :n] if factor is None else q[..., :n] / factor) + 1)
            q_time = q_time if factor is None else q_time * factor
            key_time = times[..., : self.heads].mT  # (B, H, all)
            logits = logits - q_time[..., None] * key_time[:, :, None]
        p = self.weights(logits * scale, context)
        b, h, length, total = p.shape
        mean = (p.reshape(b, h * length, total) @ keys).view(b, h, length, rank)
        up = weight[1, :, :size]
        out = torch.einsum("bhlr,hnr->bhln", mean, up[..., :rank])
        if bias is not None:
            out = out + bias[1, :, None, :size]
        if self.timed:
            out = out + (p @ time[:, None, :, None]) * up[..., rank][:, None]
            value_time = times[..., self.heads :].mT
            out = torch.cat([out, p @ value_time[..., None]], -1)
        return out.transpose(1, 2)

    def _rebuilt(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, context: Context) -> Tensor:
        """Attention of new queries over keys and values built from all that the cache holds."""
        k_pe, keys = values[..., : self.d], context.weighed(keys)
        latent = F.pad(keys, (0, self.latent.width - keys.shape[-1]))
        latent = rows.lift(latent, self.latent.n, 1.0, fused=False)
        pair = rows.upcast(apply_linear(self.up, latent))
        both = pair[..., : 2 * self.heads * self.head].unflatten(-1, (2, self.heads, self.head))
        n, size = self.nope + self.d, self.value - self.timed
        k = torch.cat([both[:, :, 0, :, : self.nope], k_pe[:, :, None].expand(-1, -1, self.heads, -1)], -1)
        v = both[:, :, 1, :, :size]
        if self.timed:
            times = context.weighed(values[..., self.d :]).unflatten(-1, (2, self.heads))
            k, v = torch.cat([k, times[:, :, 0, :, None]], -1), torch.cat([v, times[:, :, 1, :, None]], -1)
        with torch.autocast(q.device.type, enabled=False):  # which would sum in half precision
            p = self.weights(q[..., : n + self.timed].transpose(1, 2) @ k.permute(0, 2, 3, 1) * scale, context)
            heads = (p @ v.transpose(1, 2)).transpose(1, 2)
        return self.finish(heads)


def _shared(q: Tensor, keys: Tensor) -> Tensor:
    """Products of queries ``(B, H, L, d)`` with keys ``(B, all, d)`` that all heads share."""
    b, h, length, d = q.shape
    return (q.reshape(b, h * length, d) @ keys.mT).view(b, h, length, keys.shape[1])
