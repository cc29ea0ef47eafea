"""Hi-Mapper written down step by step, as its specification says it: level after level, all
samples, every projection.

Names of modules and parameters are those of official checkpoints. Serves the tests as independent
truth, and the benchmark as what the fast form is compared with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

N, L, W, HEADS = 32, 4, 128, 4


class ReferenceAttention(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        for name in ("q_proj", "k_proj", "v_proj"):
            self.add_module(name, nn.Linear(W, W, bias=False))
        self.proj = nn.Linear(W, W)
        self.proj_drop = nn.Dropout(0.1)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:2], HEADS, W // HEADS).permute(0, 2, 1, 3)

        q, k, v = heads(self.q_proj(query)), heads(self.k_proj(memory)), heads(self.v_proj(memory))
        scores = (q @ k.transpose(2, 3)) * self.scale
        mixed = scores.softmax(3) @ v
        return self.proj_drop(self.proj(mixed.permute(0, 2, 1, 3).reshape(query.shape)))


class ReferenceLayer(nn.Module):
    def __init__(self, cross_scale: float, memnorm: bool):
        super().__init__()
        self.self_attn, self.cross_attn = (
            ReferenceAttention(32**-0.5),
            ReferenceAttention(cross_scale),
        )
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(W), nn.LayerNorm(W), nn.LayerNorm(W)
        self.mlp = nn.Sequential(
            nn.Linear(W, 4 * W), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * W, W), nn.Dropout(0.1)
        )
        if memnorm:
            self.memnorm = nn.LayerNorm(W)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.cross_attn(self.norm1(x), memory)
        y = self.norm2(x)
        x = x + self.self_attn(y, y)
        return x + self.mlp(self.norm3(x))


class ReferenceTransformer(nn.Module):
    """D with one layer, or (``mixing``) G with one a level."""

    def __init__(self, dim: int, mixing: bool):
        super().__init__()
        self.memory_proj = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, W), nn.LayerNorm(W))
        self.node_proj = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, W))
        layers = (
            [ReferenceLayer(32**-0.5, True) for _ in range(L)]
            if mixing
            else [ReferenceLayer(1 / 0.07, False)]
        )
        self.decoder = nn.ModuleList(layers)
        self.out_proj = nn.Sequential(nn.LayerNorm(W), nn.Linear(W, dim))


class ReferenceLorentz(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.zeros(()))


class ReferenceLinear(nn.Module):
    """Linear map and lift of the released code."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(dim, W).uniform_(-math.sqrt(6 / W), math.sqrt(6 / W))
        )
        self.lorentz = ReferenceLorentz()

    def forward(self, nodes: Tensor) -> Tensor:
        v = nodes @ self.weight
        first, rest = v[..., 0], v[..., 1:]
        n = torch.sqrt(torch.clamp((rest * rest).sum(-1) - first * first, min=1e-9))
        r = torch.clamp(n, max=1.5)
        ahead = torch.cosh(r) + torch.sinh(r) * first / n
        return torch.cat([ahead[..., None], (torch.sinh(r) / n)[..., None] * rest], -1)


class ReferenceLast(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.node_mean = nn.Parameter(
            1.5 * torch.randn(N // 2, dim).repeat_interleave(2, 0) + 0.01 * torch.randn(N, dim)
        )
        self.node_log_sigma = nn.Parameter(nn.init.xavier_uniform_(torch.empty(N, dim)))
        self.Etransformer = ReferenceTransformer(dim, mixing=False)
        self.Llinear = ReferenceLinear(dim)

    def moments(self) -> list[tuple[Tensor, Tensor]]:
        found = [(self.node_mean, self.node_log_sigma)]
        while len(found) < L:
            mu, s = found[-1]
            second = s.exp() + mu**2
            mean = (mu[::2] + mu[1::2]) / 2
            found.append((mean, ((second[::2] + second[1::2]) / 2 - mean**2).log()))
        return found

    def forward(self, memory: Tensor, noise: list[Tensor]) -> list[Tensor]:
        """Nodes ``(B, n_l, C)`` of each level; ``noise``: one ``(n_l, C)`` a draw, in the order of
        drawing."""
        D, levels, noise = self.Etransformer, [], list(noise)
        layer = D.decoder[0]
        for level, (mu, s) in enumerate(self.moments()):
            m, n = 2**level, N // 2**level
            tokens = mu.new_zeros(N, mu.shape[1])
            for i in range(m):
                tokens[i::m] = mu + torch.exp(s / 2) * noise.pop(0)
            queries = D.node_proj(tokens.expand(len(memory), -1, -1))
            out = layer(queries, D.memory_proj(memory))
            levels.append(D.out_proj(out.reshape(len(memory), n, m, W).mean(2)))
        return levels


class ReferenceHiMapper(nn.Module):
    """``trunk`` with the mapper. ``mix_l`` and ``last_l`` as in official checkpoints."""

    def __init__(self, trunk: nn.Module, dim: int):
        super().__init__()
        self.trunk, self.last_l, self.mix_l = (
            trunk,
            ReferenceLast(dim),
            ReferenceTransformer(dim, mixing=True),
        )
        for module in (self.last_l.Etransformer, self.mix_l):
            for layer in module.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.trunc_normal_(layer.weight, std=0.02)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)

    def official_state_dict(self) -> dict[str, Tensor]:
        """Flat, as the official code saves it."""
        return {name.removeprefix("trunk."): value for name, value in self.state_dict().items()}

    def draws(self) -> list[Tensor]:
        dim = self.last_l.node_mean.shape[1]
        return [torch.randn(N // 2**level, dim) for level in range(L) for _ in range(2**level)]

    def encode(self, feature: Tensor, levels: list[Tensor]) -> Tensor:
        G = self.mix_l
        z = G.node_proj(feature[:, None])
        for layer, nodes in zip(G.decoder, levels):
            z = layer(z, G.memory_proj(nodes))
        return G.out_proj(z)[:, 0]

    def memory(self, features: Tensor) -> Tensor:
        if features.ndim == 4:
            if getattr(self.trunk, "output_fmt", "NCHW") == "NCHW":
                features = features.permute(0, 2, 3, 1)
            features = features.reshape(len(features), -1, features.shape[3])
        return features[:, 1:] if features.shape[2] < 500 else features

    def forward(self, x: Tensor, noise: list[Tensor] | None = None) -> Tensor:
        features = self.trunk.forward_features(x)
        pooled = self.trunk.forward_head(features, pre_logits=True)
        levels = self.last_l(self.memory(features), self.draws() if noise is None else noise)
        return self.trunk.get_classifier()(pooled + self.encode(pooled, levels))

    def auxiliary(self, levels: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The contrastive loss and the KL term, without their weights."""
        with torch.no_grad():
            self.last_l.Llinear.lorentz.k.clamp_(-math.log(10), math.log(10))
        c = self.last_l.Llinear.lorentz.k.exp()
        points = [self.last_l.Llinear(nodes) for nodes in levels]
        total = 0.0
        for children, parents in zip(points[:-1], points[1:]):

            def distance(a: Tensor, b: Tensor) -> Tensor:
                ta, tb = (1 / c + (a * a).sum(-1)).sqrt(), (1 / c + (b * b).sum(-1)).sqrt()
                return (
                    torch.acosh(torch.clamp(c * (ta * tb - (a * b).sum(-1)), min=1 + 1e-8))
                    / c.sqrt()
                )

            n = children.shape[1]
            for i in range(n):
                row = [
                    distance(children[:, i], parents[:, i // 2] if i == j else children[:, j])
                    for j in range(n)
                ]
                row = torch.stack(row, 1)
                total = total + (row.logsumexp(1) - row[:, i]).mean() / n
        mu, s = self.last_l.moments()[-1]
        return total, -0.5 * (1 + s - mu**2 - s.exp()).mean()
