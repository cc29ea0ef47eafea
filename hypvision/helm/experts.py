"""Mixture of curvature experts: every expert works on a hyperboloid of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry.numerics import exact, without_autocast

from . import rows
from .config import Architecture
from .layers import FeedForward, Layout, RowLinear, compute_dtype, curvature

# Up to this number of multiplications with weights of experts that a token did not choose are
# cheaper for a GPU than a wait: an estimate, about a millisecond of float32.
_IN_VAIN = 2**33


class Routing(NamedTuple):
    """The routing of a layer's tokens to experts: the number of tokens of each expert ``(E,)``, and
    the loss on uneven loads, :math:`\\sum_e f_e P_e`."""

    counts: Tensor
    balance: Tensor


class Gate(nn.Module):
    """The router: it chooses the experts of a token and their weights."""

    bias: Tensor

    def __init__(self, config: Architecture):
        super().__init__()
        self.config = config
        self.size = Layout(config.dim, config).size
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, self.size))
        # The bias is added to the scores only to select experts; it follows their loads, not
        # gradients.
        self.register_buffer("bias", torch.zeros(config.n_routed_experts))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weight by Xavier's rule for the space part, and the bias with 0."""
        nn.init.xavier_uniform_(self.weight)
        self.bias.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for points ``(N, width)``, the weights ``(N, k)`` of their experts, the experts'
        numbers ``(N, k)``, ascending, and all scores ``(N, E)``."""
        config = self.config
        x = rows.upcast(x)
        with exact(x.device):
            weight = self.weight.to(x.dtype)
            # The time is not read, because its weight would be one more coordinate to learn.
            logits = x[:, : self.size] @ weight.T
            if config.router == "lorentz" and config.lorentz:
                time = torch.sqrt(weight.square().sum(-1) + 1)
                logits = 2 + 2 * (logits - x[:, self.size, None] * time)
            scores = logits.softmax(-1) if config.score_func == "softmax" else logits.sigmoid()
            chosen = self._select(scores.detach() + self.bias.to(scores.dtype))
            weights = scores.gather(1, chosen)
            if config.renormalize:
                weights = weights / weights.sum(-1, keepdim=True)
            return weights * config.route_scale, chosen, scores

    def _select(self, scores: Tensor) -> Tensor:
        config = self.config
        if config.n_expert_groups > 1:
            grouped = scores.unflatten(-1, (config.n_expert_groups, -1))
            best = (
                grouped.topk(min(2, grouped.shape[-1]), -1)
                .values.sum(-1)
                .topk(config.n_limited_groups, -1)
                .indices
            )
            allowed = torch.zeros(
                grouped.shape[:2], dtype=torch.bool, device=scores.device
            ).scatter(1, best, True)
            scores = grouped.masked_fill(~allowed[..., None], float("-inf")).flatten(1)
        return scores.topk(config.n_activated_experts, -1).indices.sort(-1).values

    @torch.no_grad()
    def follow(self, counts: Tensor) -> None:
        """Shift the bias towards even loads; ``counts`` ``(E,)`` are the experts' numbers of tokens
        in one optimiser step."""
        share = counts / counts.sum().clamp(min=1)
        gap = share.mean() - share
        self.bias += self.config.bias_rate * (
            gap.sign() if self.config.bias_rule == "sign" else gap
        )


class MixtureOfCurvatures(nn.Module):
    """Layer of routed experts, each on a hyperboloid of its own, and shared experts, whose outputs
    are combined to one point."""

    shared: nn.ModuleList | FeedForward | None

    def __init__(self, config: Architecture):
        super().__init__()
        self.config = config
        self.gate = Gate(config)
        self.experts = nn.ModuleList(
            FeedForward(
                config, config.mice_inter_dim, c if config.lorentz else None, config.train_curv
            )
            for c in config.curvatures
        )
        count = config.n_shared_experts
        connected = False
        # In the paper shared experts have curvatures of their own.
        if config.lorentz and config.moe_combine == "centroid":
            self.shared = nn.ModuleList(
                FeedForward(config, config.mice_inter_dim, 1.0, config.train_curv)
                for _ in range(count)
            )
        else:
            self.shared = FeedForward(config, count * config.mice_inter_dim) if count else None
            connected = count > 0 and config.lorentz
        self.w_y = nn.Parameter(torch.empty(1)) if connected else None
        self.scale = nn.Parameter(torch.empty(1)) if connected else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the residual connection with the shared experts."""
        if self.w_y is not None and self.scale is not None:
            nn.init.constant_(self.w_y, 1.0)
            nn.init.constant_(self.scale, 0.6931471805599453)  # log 2: exp(scale) is 2

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """Return output rows without time for points ``(B, L, width)``, and the routing of the
        tokens."""
        flat = x.flatten(0, -2)
        config = self.config
        weights, chosen, scores = self.gate(flat)
        count, k = chosen.shape
        every = chosen.flatten()
        # bincount is not used, because its output size makes the CPU wait for a GPU.
        counts = every.new_zeros(config.n_routed_experts).scatter_add_(
            0, every, torch.ones_like(every)
        )
        routed = self._routed(flat, chosen, counts)
        experts = (
            self.shared
            if isinstance(self.shared, nn.ModuleList)
            else [self.shared]
            if self.shared
            else []
        )
        shared = [rows.upcast(expert(flat)) for expert in experts]
        out = self._combine(shared, routed, weights).view_as(x)
        share = scores / scores.sum(-1, keepdim=True)
        load = counts * (config.n_routed_experts / (k * max(count, 1)))
        return out, Routing(counts, (load * share.sum(0)).sum() / max(count, 1))

    def _routed(self, x: Tensor, chosen: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs ``(k, N, width)`` of the k experts ``chosen`` ``(N, k)`` for each
        token ``(N, width)``."""
        own = [e for e in self.experts if isinstance(e, FeedForward) and e.is_plain]
        whole = len(own) == len(self.experts)
        if whole and not torch.compiler.is_compiling() and _is_small(x, own, chosen.shape[1]):
            done = _all_experts(own, x)
            return done.gather(0, chosen.T[..., None].expand(-1, -1, done.shape[-1]))
        every = chosen.flatten()
        order = every.argsort(stable=True)
        gathered = x.index_select(0, order // chosen.shape[1])
        if torch.compiler.is_compiling() and whole:
            done = _in_one_graph(own, gathered, counts, every[order])
        else:
            done = self._one_by_one(gathered, counts)
        # not len(), which a compiler takes for a constant
        places = torch.arange(order.shape[0], device=order.device)
        back = torch.empty_like(order).scatter_(0, order, places).view(chosen.shape)
        picked = rows.upcast(done).index_select(0, back.T.flatten())
        return picked.unflatten(0, (chosen.shape[1], -1))

    def _one_by_one(self, x: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs ``(N, width)`` of the experts for points ``(N, width)`` that are
        sorted by expert."""
        parts = zip(self.experts, x.split(_sizes(counts, len(x))))
        # An expert without tokens gets no gradient, because an optimiser would move it even by a
        # zero gradient. Distributed training needs a gradient from every process, so there the
        # expert gets zeros.
        everyone = not len(x) or (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        )
        return torch.cat([expert(part) for expert, part in parts if everyone or len(part)])

    def _combine(self, shared: list[Tensor], routed: Tensor, weights: Tensor) -> Tensor:
        config = self.config
        if not config.lorentz:
            return functools.reduce(
                torch.add, [*shared, *(y * w for y, w in zip(routed, weights.split(1, -1)))]
            )
        w_y, scale = (None if x is None else rows.upcast(x) for x in (self.w_y, self.scale))
        every = torch.cat([routed, *(row[None] for row in shared)]) if shared else routed
        return rows.combine(
            every, weights, w_y, scale, config.moe_combine == "released", config.safe_clamp
        )


def _is_small(x: Tensor, experts: list[FeedForward], k: int) -> bool:
    """Return whether it is faster to compute all experts for all tokens than to wait for the number
    of tokens of each, as on a GPU, which computes many rows at once."""
    weights = sum(layer.weight.numel() for layer in (experts[0].gate_up, experts[0].down))
    return x.device.type != "cpu" and len(x) * (len(experts) - k) * weights <= _IN_VAIN


def _all_experts(experts: list[FeedForward], x: Tensor) -> Tensor:
    """Return the outputs ``(E, N, width)`` of all experts for the same points ``(N, width)``."""
    first = experts[0]
    c: float | Tensor = 1.0
    root: Tensor | None = None
    h = x.expand(len(experts), -1, -1)
    if first.initial_c is not None:
        c = curvature([expert.c for expert in experts])[:, None, None]
        root = torch.sqrt(c)
        h = h * root
    h = rows.swiglu(_each(h, [e.gate_up for e in experts]), first.inner.n, c, first.fused)
    out = rows.upcast(_each(h, [e.down for e in experts]))
    return out if root is None else out / root


def _each(x: Tensor, layers: list[RowLinear]) -> Tensor:
    """Return rows ``(E, N, out)`` for rows ``(E, N, in)`` through E linear layers, one layer for
    each group."""
    dtype = compute_dtype(x, layers[0].weight)
    weights = torch.stack([layer.weight for layer in layers]).to(dtype)
    if layers[0].bias is None:
        return torch.matmul(x.to(dtype), weights.mT)
    biases = torch.stack([layer.bias for layer in layers]).to(dtype)
    return torch.baddbmm(biases[:, None], x.to(dtype), weights.mT)


def _sizes(counts: Tensor, total: int) -> list[int]:
    """Return the counts ``(E,)`` of ``total`` rows as numbers, for which the host waits; on the
    meta device, without data, ``total`` divided evenly."""
    if not counts.is_meta:
        return counts.tolist()
    first = total // len(counts)
    return [total - first * (len(counts) - 1), *[first] * (len(counts) - 1)]


def _in_one_graph(experts: list[FeedForward], x: Tensor, counts: Tensor, own: Tensor) -> Tensor:
    """Return the output rows ``(N, width)`` of the experts for points that are sorted by expert,
    without reading the counts; ``own`` ``(N,)`` holds the number of each point's expert."""
    first = experts[0]
    c: float | Tensor = 1.0
    if first.initial_c is not None:
        c = curvature([expert.c for expert in experts])[own, None]
        x = x * torch.sqrt(c)
    h = rows.swiglu(
        _grouped(x, counts, [e.gate_up for e in experts]), first.inner.n, c, first.fused
    )
    out = rows.upcast(_grouped(h, counts, [e.down for e in experts]))
    return out / torch.sqrt(c) if isinstance(c, Tensor) else out


def _grouped(x: Tensor, counts: Tensor, layers: list[RowLinear]) -> Tensor:
    """Return rows ``(N, out)`` for groups of rows ``(N, in)`` through linear layers, one layer for
    each group."""
    dtype = compute_dtype(x, layers[0].weight)
    weights = [layer.weight.to(dtype) for layer in layers]
    biases = [layer.bias.to(dtype) for layer in layers if layer.bias is not None]
    return grouped_linear(x.to(dtype), counts, weights, biases)


# The gate decides at run time how many rows a group has. Compilers break their graphs there, unless
# the counts are used inside a single operation with a known output size.


@torch.library.custom_op(
    "hypvision::grouped_linear",
    mutates_args=(),
    schema="(Tensor x, Tensor counts, Tensor[] weights, Tensor[] biases) -> Tensor",
)
def grouped_linear(
    x: Tensor, counts: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """Return rows ``(N, out)`` for rows ``(N, in)``, group after group, each through the linear map
    of its group: E weights ``(out, in)`` and as many biases ``(out,)``, or none. The counts
    ``(E,)`` of rows in the groups are integers with the sum N."""
    parts = x.split(counts.tolist())
    return torch.cat(
        [F.linear(*mapped) for mapped in zip(parts, weights, *([biases] if biases else []))]
    )


@grouped_linear.register_fake
def _(x: Tensor, counts: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0], weights[0].shape[0])


@torch.library.custom_op(
    "hypvision::grouped_linear_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor counts, Tensor[] weights) -> Tensor[]",
)
def _backward(grad: Tensor, x: Tensor, counts: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of x, of each weight, and of each bias, in one list."""
    sizes = counts.tolist()
    grads = grad.split(sizes)
    by_x = torch.cat([g @ w for g, w in zip(grads, weights)])
    return [
        by_x,
        *(g.T @ part for g, part in zip(grads, x.split(sizes))),
        *(g.sum(0) for g in grads),
    ]


@_backward.register_fake
def _(grad: Tensor, x: Tensor, counts: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format),
        *(torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights),
        *(w.new_empty(w.shape[0]) for w in weights),
    ]


def _save(ctx, inputs, output) -> None:
    x, counts, weights, biases = inputs
    ctx.save_for_backward(x, counts, *weights)
    ctx.biased = bool(biases)


def _differentiate(ctx, grad: Tensor):
    x, counts, *weights = ctx.saved_tensors
    found = _backward(grad, x, counts, weights)
    count = len(weights)
    return found[0], None, found[1 : count + 1], found[count + 1 :] if ctx.biased else []


grouped_linear.register_autograd(without_autocast(_differentiate), setup_context=_save)
