"""HELM as its authors' code computes it, step by step: time first, one operation after the other,
state dict and all.

Written from the description of that code, apart from :mod:`hypvision.helm`. Points satisfy
``<x, x>_L = -c``. Options put the defects of the published code in or out: ``eval_crash``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def lift(s: Tensor, c=1.0, floor: float = 1e-8) -> Tensor:
    return torch.cat([torch.sqrt((s.square().sum(-1, keepdim=True) + c).clamp(min=floor)), s], -1)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Minkowski product along the last dimension, kept."""
    return -x[..., :1] * y[..., :1] + (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True)


class Manifold(nn.Module):
    """A published manifold: its number is in the state dict, twice."""

    def __init__(self, c: float = 1.0, learned: bool = False):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(c), requires_grad=learned)

    @property
    def c(self) -> Tensor:
        return self.k


class LorentzLinear(nn.Module):
    def __init__(
        self,
        in_ambient: int,
        out_space: int,
        manifold: Manifold,
        manifold_out: Manifold | None = None,
    ):
        super().__init__()
        self.manifold, self.manifold_out = manifold, manifold_out
        self.linear = nn.Linear(in_ambient, out_space)
        nn.init.xavier_uniform_(self.linear.weight, gain=math.sqrt(2))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, return_space: bool = False) -> Tensor:
        u = self.linear(x)
        out = u if return_space else lift(u, self.manifold.c)
        return (
            out
            if self.manifold_out is None
            else out * torch.sqrt(self.manifold_out.c / self.manifold.c)
        )


class RMSNorm(nn.Module):
    def __init__(self, space: int, eps: float = 1e-8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(space)), eps

    def forward(
        self, x: Tensor, c=1.0, space_only: bool = False, return_space: bool = False
    ) -> Tensor:
        s = x if space_only else x[..., 1:]
        s = self.weight * (s / torch.sqrt(s.square().mean(-1, keepdim=True) + self.eps))
        return s if return_space else lift(s, c, 1e-4)


class Residual(nn.Module):
    def __init__(
        self, manifold: Manifold, fixed: float | None = None, learned: float | None = None
    ):
        super().__init__()
        self.manifold, self.fixed = manifold, fixed
        self.w_y = nn.Parameter(torch.tensor(1.0))
        if learned is not None:
            self.scale = nn.Parameter(torch.tensor(math.log(learned)))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        c = self.manifold.c
        a = x + (self.w_y if weight is None else weight) * y
        r = torch.sqrt(c) * a / torch.sqrt((-inner(a, a)).abs().clamp(min=1e-4))
        if hasattr(self, "scale"):
            return lift(self.scale.exp() * r[..., 1:], c, 1e-4)
        return r if self.fixed is None else lift(self.fixed * r[..., 1:], c, 1e-4)


def centroid(p: Tensor, v: Tensor, c=1.0) -> Tensor:
    """Weights ``(..., L, N)`` and points ``(..., N, d)``."""
    a = p @ v
    floor = 1e-8 if v.dtype == torch.float64 else 1e-6
    return a * c**0.5 / torch.sqrt((-inner(a, a)).abs().clamp(min=floor))


def frequencies(d: int, length: int, base: float = 10000.0, yarn: dict | None = None) -> Tensor:
    """``(length, d/2)`` complex, always float32."""
    theta = base ** (-torch.arange(0, d, 2).float() / d)
    if yarn:

        def correction(r):
            return d * math.log(yarn["original"] / (2 * math.pi * r)) / (2 * math.log(base))

        low = max(math.floor(correction(yarn["fast"])), 0)
        high = min(math.ceil(correction(yarn["slow"])), d - 1)
        high = high + 0.001 if low == high else high
        ramp = ((torch.arange(d // 2) - low) / (high - low)).clamp(0, 1)
        theta = theta / yarn["factor"] * ramp + theta * (1 - ramp)
    angle = torch.outer(torch.arange(length).float(), theta)
    return torch.polar(torch.ones_like(angle), angle)


def rotary(s: Tensor, table: Tensor) -> Tensor:
    """Space parts ``(B, L, H, d)``; pairs (2j, 2j + 1) are complex numbers."""
    z = torch.view_as_complex(s.float().reshape(*s.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * table[: s.shape[1], None]).flatten(-2).to(s.dtype)


def attention_weights(q: Tensor, k: Tensor, scale: Tensor, bias: Tensor, blocked: Tensor) -> Tensor:
    """Points ``(B, H, L, d)``: softmax of minus the squared distance, True in ``blocked`` is left
    out."""
    q = torch.cat([-q[..., :1], q[..., 1:]], -1)
    logits = (2 + 2 * q @ k.mT) / scale + bias
    return logits.masked_fill(blocked, -1e18).softmax(-1)


class FullAttention(nn.Module):
    def __init__(self, w: int, heads: int, context: int):
        super().__init__()
        self.heads, self.d = heads, w // heads
        for name in ("Wq", "Wk", "Wv"):
            setattr(self, name, nn.Linear(w, heads * (self.d - 1)))
        self.final_linear = nn.Linear(w, w - 1)
        self.scale = nn.Parameter(torch.tensor([math.sqrt(w)]))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, blocked: Tensor, table: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            layer(x).view(b, n, self.heads, self.d - 1) for layer in (self.Wq, self.Wk, self.Wv)
        )
        q, k = rotary(q, table), rotary(k, table)
        q, k, v = (lift(part).transpose(1, 2) for part in (q, k, v))
        out = centroid(attention_weights(q, k, self.scale, self.bias, blocked), v)
        return lift(self.final_linear(out.transpose(1, 2).flatten(2)))


class LatentAttention(nn.Module):
    def __init__(self, config, manifold: Manifold):
        super().__init__()
        self.h, self.n, self.r = (
            config.n_heads,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim - 1,
        )
        self.v, self.rank, self.q_rank = (
            config.v_head_dim - 1,
            config.kv_lora_rank,
            config.q_lora_rank,
        )
        queries = self.h * (self.n + self.r)
        if self.q_rank:  # as it was meant: the published one crashes
            self.wq_a = LorentzLinear(config.dim, self.q_rank, manifold)
            self.q_norm = RMSNorm(self.q_rank)
            self.wq_b = LorentzLinear(self.q_rank + 1, queries, manifold)
        else:
            self.wq = LorentzLinear(config.dim, queries, manifold)
        self.wkv_a = LorentzLinear(config.dim, self.rank + self.r, manifold)
        self.kv_norm = RMSNorm(self.rank)
        self.wkv_b = LorentzLinear(self.rank + 1, self.h * (self.n + self.v), manifold)
        self.wo = LorentzLinear(self.h * config.v_head_dim, config.dim - 1, manifold)
        start = math.sqrt(self.h * (self.n + config.qk_rope_head_dim))
        self.softmax_scale = nn.Parameter(torch.tensor([start]))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, blocked: Tensor, table: Tensor) -> Tensor:
        b, length, _ = x.shape
        if self.q_rank:
            q = self.wq_b(self.q_norm(self.wq_a(x)), return_space=True)
        else:
            q = self.wq(x, return_space=True)
        q_nope, q_pe = q.view(b, length, self.h, -1).split([self.n, self.r], -1)
        q_pe = rotary(q_pe, table)
        latent, k_pe = self.wkv_a(x, return_space=True).split([self.rank, self.r], -1)
        k_pe = rotary(k_pe[:, :, None], table)
        pair = self.wkv_b(self.kv_norm(latent, space_only=True), return_space=True).view(
            b, length, self.h, -1
        )
        k_nope, v = pair.split([self.n, self.v], -1)

        def concatenated(*points: Tensor) -> Tensor:
            """Space parts side by side; the time is sqrt(sum t_i^2 - (N - 1) c)."""
            time = torch.sqrt(sum(p[..., :1].square() for p in points) - (len(points) - 1))
            return torch.cat([time, *(p[..., 1:] for p in points)], -1)

        q = concatenated(lift(q_nope), lift(q_pe)).transpose(1, 2)
        k = concatenated(lift(k_nope), lift(k_pe).expand(-1, -1, self.h, -1)).transpose(1, 2)
        out = centroid(
            attention_weights(q, k, self.softmax_scale, self.bias, blocked), lift(v).transpose(1, 2)
        )
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, inter: int, manifold: Manifold, floor: float = 1e-6):
        super().__init__()
        self.manifold, self.floor = manifold, floor
        self.w1, self.w3 = (LorentzLinear(dim, inter - 1, manifold) for _ in range(2))
        self.w2 = LorentzLinear(inter, dim - 1, manifold)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.w1(x, return_space=True)) * self.w3(x, return_space=True)
        return self.w2(lift(h, self.manifold.c, self.floor))


class Expert(FeedForward):
    def __init__(self, dim: int, inter: int, manifold: Manifold, learned: bool):
        super().__init__(dim, inter, Manifold(1.0, learned), 1e-8)
        self.expert_manifold, self.outside = self.manifold, (manifold,)

    def forward(self, x: Tensor) -> Tensor:
        c, c_e = self.outside[0].c, self.expert_manifold.c
        return super().forward(torch.sqrt(c_e / c) * x) * torch.sqrt(c / c_e)


class Gate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.dim - 1))
        nn.init.xavier_uniform_(self.weight)
        self.bias = nn.Parameter(torch.zeros(config.n_routed_experts))

    def forward(self, s: Tensor):
        config = self.config
        raw = s @ self.weight.T
        if config.router == "lorentz":
            raw = 2 + 2 * inner(lift(s)[:, None], lift(self.weight)[None])[..., 0]
        scores = raw.softmax(-1) if config.score_func == "softmax" else raw.sigmoid()
        choice = scores + self.bias
        if config.n_expert_groups > 1:
            groups = choice.view(len(s), config.n_expert_groups, -1)
            best = groups.topk(2, -1)[0].sum(-1).topk(config.n_limited_groups, -1)[1]
            keep = torch.zeros(groups.shape[:2]).scatter(1, best, 1).bool()
            choice = groups.masked_fill(~keep[..., None], float("-inf")).flatten(1)
        indices = choice.topk(config.n_activated_experts, -1)[1]
        weights = scores.gather(1, indices)
        if config.score_func == "sigmoid" if config.renorm_topk is None else config.renorm_topk:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * config.route_scale, indices, scores


class MiCE(nn.Module):
    def __init__(self, config, manifold: Manifold, eval_crash: bool):
        super().__init__()
        self.config, self.eval_crash = config, eval_crash
        self.gate = Gate(config)
        dim, inter = config.dim, config.mice_inter_dim
        self.experts = nn.ModuleList(
            Expert(dim, inter, manifold, config.train_curv) for _ in range(config.n_routed_experts)
        )
        if config.moe_combine == "centroid":  # the paper's, each on a curvature of its own
            self.shared_experts = nn.ModuleList(
                Expert(dim, inter, manifold, config.train_curv)
                for _ in range(config.n_shared_experts)
            )
        else:
            self.shared_experts = FeedForward(dim, config.n_shared_experts * inter, manifold)
            self.add_experts = Residual(manifold, learned=2.0)
        self.combine = (Residual(manifold, 2.0),)  # no parameters of its own

    def forward(self, x: Tensor):
        if self.eval_crash and not self.training:
            raise ValueError("not enough values to unpack (expected 3, got 2)")
        flat = x.flatten(0, 1)
        weights, indices, scores = self.gate(flat[:, 1:])
        counts = torch.bincount(indices.flatten(), minlength=self.config.n_routed_experts)
        if self.config.moe_combine == "released":
            shared = self.shared_experts(flat)
            y = torch.zeros_like(flat)
            y[:, 0] = 1
            for i, expert in enumerate(self.experts):
                token, slot = torch.where(indices == i)
                if len(token):
                    new = self.combine[0](
                        y[token], expert(flat[token]), weight=weights[token, slot, None]
                    )
                    y = y.index_put((token,), new)
            return self.add_experts(shared, y).view_as(x), counts, scores
        total = sum(expert(flat) for expert in self.shared_experts)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(indices == i)
            if len(token):
                total = total.index_add(0, token, weights[token, slot, None] * expert(flat[token]))
        total = total / torch.sqrt(-inner(total, total))
        return total.view_as(x), counts, scores


def initial_points(rows: int, w: int) -> Tensor:
    u = F.normalize(torch.randn(rows, w), dim=-1)
    length = torch.sqrt(inner(u, u).clamp(min=1e-8))
    return lift((torch.sinh(length) / length * u)[:, 1:])


class Embedding(nn.Module):
    def __init__(self, rows: int, w: int, manifold: Manifold):
        super().__init__()
        self.embedding = nn.Parameter(initial_points(rows, w))
        self.add_pos = Residual(manifold, learned=1.0)  # never used

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens]


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class HelmD(nn.Module):
    """``config`` has the names of :class:`hypvision.helm.Architecture`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        w, manifold = config.dim, Manifold()
        self.manifold_in, self.manifold_hidden, self.manifold_out = Manifold(), manifold, Manifold()
        self.token_embed = Embedding(config.vocab_size, w, manifold)
        self.resblocks = nn.ModuleList()
        for _ in range(config.n_layers):
            block = nn.Module()
            block.attn = FullAttention(w, config.n_heads, config.max_seq_len)
            block.ln_1, block.ln_2 = RMSNorm(w - 1), RMSNorm(w - 1)
            block.mlp = FeedForward(w, config.inter_dim, manifold)
            block.res1, block.res2 = (Residual(manifold, 4 * math.sqrt(w)) for _ in range(2))
            self.resblocks.append(block)
        self.final_proj = LorentzLinear(w, w - 1, manifold)
        self.ln_final = RMSNorm(w - 1)
        self.mapping = nn.Linear(w, config.vocab_size, bias=False)
        self.register_buffer("attn_mask", causal(config.max_seq_len))
        self.register_buffer(
            "freqs_complex", frequencies(w // config.n_heads - 1, config.max_seq_len)
        )

    def forward(self, tokens: Tensor, blocked: Tensor | None = None) -> Tensor:
        n = tokens.shape[1]
        mask = self.attn_mask[:n, :n]
        mask = mask if blocked is None else (mask | blocked)[:, None]
        x = self.token_embed(tokens)
        for block in self.resblocks:
            x = block.res1(x, block.attn(block.ln_1(x), mask, self.freqs_complex))
            x = block.res2(x, block.mlp(block.ln_2(x)))
        return self.mapping(self.ln_final(self.final_proj(x)))


class HelmMiCE(nn.Module):
    """The mixture; ``eval_crash`` as published."""

    def __init__(self, config, eval_crash: bool = True):
        super().__init__()
        self.config = config
        dim, manifold = config.dim, Manifold()
        self.manifold_in, self.manifold_hidden, self.manifold_out = Manifold(), manifold, Manifold()
        self.embed = (
            nn.Embedding(config.vocab_size, dim - 1)
            if config.project_emb
            else Embedding(config.vocab_size, dim, manifold)
        )
        self.layers = nn.ModuleList()
        for i in range(config.n_layers):
            layer = nn.Module()
            layer.attn = LatentAttention(config, manifold)
            dense = i < config.n_dense_layers
            layer.ffn = (
                FeedForward(dim, config.inter_dim, manifold)
                if dense
                else MiCE(config, manifold, eval_crash)
            )
            layer.attn_norm, layer.ffn_norm = RMSNorm(dim - 1), RMSNorm(dim - 1)
            layer.attn_res, layer.ffn_res = (Residual(manifold, math.sqrt(dim)) for _ in range(2))
            self.layers.append(layer)
        self.final_proj = LorentzLinear(dim, dim - 1, manifold)
        self.norm = RMSNorm(dim - 1)
        self.head = nn.Linear(dim, config.vocab_size, bias=False)
        yarn = None
        if config.max_seq_len > config.original_seq_len:
            yarn = dict(
                original=config.original_seq_len, fast=config.beta_fast, slow=config.beta_slow,
                factor=config.rope_factor,
            )  # fmt: skip
        self.table = frequencies(
            config.qk_rope_head_dim - 1, config.max_seq_len, config.rope_theta, yarn
        )
        self.register_buffer("attn_mask", causal(config.max_seq_len))

    def forward(self, tokens: Tensor, blocked: Tensor | None = None):
        """Logits, and of each layer with experts the counts and the scores."""
        n = tokens.shape[1]
        mask = self.attn_mask[:n, :n]
        mask = mask if blocked is None else (mask | blocked)[:, None]
        x = self.embed(tokens)
        x = lift(x) if self.config.project_emb else x
        counts, scores = [], []
        for layer in self.layers:
            x = layer.attn_res(x, layer.attn(layer.attn_norm(x), mask, self.table))
            h = layer.ffn_norm(x)
            if isinstance(layer.ffn, MiCE):
                y, count, score = layer.ffn(h)
                counts.append(count)
                scores.append(score)
            else:
                y = layer.ffn(h)
            x = layer.ffn_res(x, y)
        hidden = self.norm(self.final_proj(x, return_space=True), space_only=True)
        return self.head(hidden), counts, scores


def official_state(model: nn.Module) -> dict[str, Tensor]:
    """The published state dict: that of the model, with ``c`` and ``k`` of its manifolds under
    every name they have."""
    state = dict(model.state_dict())
    for name, value in list(state.items()):
        if name.endswith(".k"):
            state[f"{name[:-1]}c"] = value
    return state


class RiemannianAdam:
    """The published optimiser of points ``(N, W)``, one step after the other, as its description
    says."""

    def __init__(self, x: Tensor, lr: float, betas=(0.9, 0.999), eps: float = 1e-8, c: float = 1.0):
        self.x, self.lr, self.betas, self.eps, self.c = x, lr, betas, eps, c
        self.m, self.v, self.t = torch.zeros_like(x), x.new_zeros(len(x), 1), 0

    def step(self, grad: Tensor) -> None:
        x, c, (b1, b2) = self.x, self.c, self.betas
        self.t += 1
        g = torch.cat([-grad[:, :1], grad[:, 1:]], 1)
        g = g + inner(x, g) * x / c
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * inner(g, g)
        d = -self.lr * (self.m / (1 - b1**self.t)) / ((self.v / (1 - b2**self.t)).sqrt() + self.eps)
        d = d + inner(x, d) * x / c
        length = torch.sqrt(inner(d, d).clamp(min=1e-8))
        y = torch.cosh(length / c**0.5) * x + c**0.5 * torch.sinh(length / c**0.5) * d / length
        y = lift(y[:, 1:], c)
        m = self.m + inner(y, self.m) / (c - inner(x, y)) * (x + y)
        self.x, self.m = y, m + inner(y, m) * y / c
