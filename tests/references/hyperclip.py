"""CAT-Seg's head and HyperCLIP's weights written down step by step: the reference of the tests and
the benchmark.

Everything is repeated as the published formulation has it: guidance for every class and every
place, padding tokens one by one, dense block-diagonal matrices, one-hot targets. It reads
parameters by their official names from a state dict.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.clip.adapters.hyperclip.layer import block_product
from hypvision.geometry.numerics import Function


def map_rows_reference(x: Tensor, s: Tensor, c: float, mobius: bool = True) -> Tensor:
    """The official chain exp0, Moebius product, projection, log0, with its constants.

    Its gradient for a row of zeros is NaN where the official one is (0/0 behind a ``where``), and
    in float32 it loses accuracy for short rows: 4e-4 at a norm of 1e-3, 3 % below 1e-5 for c =
    0.01.
    """
    root = math.sqrt(c)

    def norm(v: Tensor) -> Tensor:
        return v.norm(dim=-1, keepdim=True)

    def artanh(v: Tensor) -> Tensor:
        v = _Clamp.apply(v, 1 - 1e-5)
        return 0.5 * (torch.log(1 + v) - torch.log(1 - v))

    n = norm(x).clamp(min=1e-5)
    point = torch.tanh((root * n).clamp(max=15)) * x / (root * n)
    product = block_product(point, s)
    if mobius:
        pn, mn = norm(point).clamp(min=1e-5), norm(product)
        moved = torch.tanh((mn / pn * artanh(root * pn)).clamp(max=15)) * product / (mn * root)
        product = torch.where((product == 0).all(-1, keepdim=True), torch.zeros_like(moved), moved)
    radius, limit = norm(product).clamp(min=1e-5), (1 - 1e-3) / root
    product = torch.where(radius > limit, product / radius * limit, product)
    n = norm(product).clamp(min=1e-5)
    return product / n / root * artanh(root * n)


class _Clamp(Function):
    """Clamp to +-limit and pass the gradient through, as the official artanh does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def reference_packed(weight: Tensor, blocks: dict[str, Tensor], c: float) -> Tensor:
    """The official path: one dense D x D matrix for each projection, the rows through the whole
    chain."""
    parts = []
    for letter, rows in zip("qkv", weight.detach().chunk(3)):
        dense = torch.block_diag(*blocks[letter])
        parts.append(map_rows_reference(rows, dense[None], c))
    return torch.cat(parts)


class ReferenceHead:
    """The aggregator as functions of a state dict; arguments as for CATSegHead."""

    def __init__(self, weights: dict[str, Tensor], heads: int = 4, window: int = 12, pool=(2, 2),
    pad_len: int = 256,
                 attention: str = "linear", layers: int = 2):  # fmt: skip
        self.w, self.heads, self.window, self.pool = weights, heads, window, pool
        self.pad_len, self.attention, self.layers = pad_len, attention, layers

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def conv(self, x: Tensor, name: str, padding: int = 1) -> Tensor:
        return F.conv2d(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"), padding=padding)

    def __call__(
        self, features: Tensor, text: Tensor, maps: list[Tensor], training: bool = False
    ) -> Tensor:
        """``features`` (1, E, H, W), ``text`` (T, P, E), one image -> (1, T, 4H, 4W)."""
        unit = features[0] / features[0].norm(dim=0).clamp(min=1e-12)
        corr = torch.einsum("ehw,tpe->ptwh", unit, text).transpose(-1, -2)
        count, kept = len(text), None
        if self.pad_len and count > self.pad_len:
            kept = corr.amax((0, 2, 3)).sort(descending=True).indices[: self.pad_len]
            corr, text = corr[:, kept], text[kept]
        t, h, w = corr.shape[1:]
        x = torch.stack(
            [self.conv(corr[None, :, i], "conv1", 3)[0] for i in range(t)]
        )  # (T, C, H, W)
        appearance = F.relu(self.conv(features, "guidance_projection.0"))[0]
        mean = text.mean(1)
        words = F.relu(
            self.linear(mean / mean.norm(dim=-1, keepdim=True), "text_guidance_projection.0")
        )
        for number in range(self.layers):
            x = self.spatial(x, appearance, f"layers.{number}.swin_block")
            x = self.classes(
                x, words, f"layers.{number}.attention", self.pool if training else (1, 1)
            )
        for number, guide in enumerate(maps):
            guide = F.relu(self.conv(guide, f"decoder_guidance_projection.{number}.0"))
            x = self.up(x, guide.expand(t, -1, -1, -1), f"decoder{number + 1}")
        logits = self.conv(x, "head")[:, 0][None]
        if kept is not None:
            full = logits.new_full((1, count, *logits.shape[2:]), -100.0)
            full[:, kept] = logits
            logits = full
        return logits

    def spatial(self, x: Tensor, guidance: Tensor, name: str) -> Tensor:
        t, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        guide = guidance.flatten(1).T.expand(t, -1, -1)
        guide = self.norm(guide, f"{name}.guidance_norm")
        for number in (1, 2):
            window, shift = self.window, 0 if number == 1 else self.window // 2
            if min(h, w) <= window:
                window, shift = min(h, w), 0
            tokens = self.swin(tokens, guide, f"{name}.block_{number}", (h, w), window, shift)
        return tokens.transpose(1, 2).unflatten(2, (h, w))

    def swin(
        self, x: Tensor, guide: Tensor, name: str, size: tuple[int, int], window: int, shift: int
    ) -> Tensor:
        h, w = size
        t, _, c = x.shape
        y = self.norm(x, f"{name}.norm1")
        joint = torch.cat([y, guide], -1).unflatten(1, size).roll((-shift, -shift), (1, 2))
        label = torch.zeros(h, w)
        edges = (
            [slice(0, -window), slice(-window, -shift), slice(-shift, None)]
            if shift
            else [slice(None)]
        )
        for i, rows in enumerate(edges):
            for j, columns in enumerate(edges):
                label[rows, columns] = 10 * i + j
        out = torch.zeros(t, h, w, c, dtype=x.dtype)
        width = c // self.heads
        for top in range(0, h, window):
            for left in range(0, w, window):
                here = (slice(None), slice(top, top + window), slice(left, left + window))
                part = joint[here].flatten(1, 2)
                q, k = (self.linear(part, f"{name}.attn.{letter}") for letter in "qk")
                v = self.linear(part[..., :c], f"{name}.attn.v")
                region = label[here[1:]].flatten()
                mask = torch.where(region[:, None] == region[None], 0.0, -100.0)
                found = []
                for head in range(self.heads):
                    channels = slice(head * width, (head + 1) * width)
                    score = (q[..., channels] * width**-0.5) @ k[..., channels].transpose(
                        1, 2
                    ) + mask
                    found.append(score.softmax(-1) @ v[..., channels])
                mixed = self.linear(torch.cat(found, -1), f"{name}.attn.proj")
                out[here] = mixed.unflatten(1, (window, window))
        x = x + out.roll((shift, shift), (1, 2)).flatten(1, 2)
        y = self.linear(self.norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        return x + self.linear(F.gelu(y), f"{name}.mlp.fc2")

    def classes(self, x: Tensor, words: Tensor, name: str, pool: tuple[int, int]) -> Tensor:
        t, c, h, w = x.shape
        pooled = F.avg_pool2d(x, pool)
        y = pooled.permute(2, 3, 0, 1).flatten(0, 1)  # (places, T, C)
        guide = words.expand(len(y), -1, -1)
        if t < self.pad_len:
            more = self.pad_len - t
            y = torch.cat([y, self.w[f"{name}.padding_tokens"].expand(len(y), more, -1)], 1)
            guide = torch.cat(
                [guide, self.w[f"{name}.padding_guidance"].expand(len(y), more, -1)], 1
            )
        z = self.norm(y, f"{name}.norm1")
        joint = torch.cat([z, guide], -1)
        q, k = (self.linear(joint, f"{name}.attention.{letter}") for letter in "qk")
        v = self.linear(z, f"{name}.attention.v")
        length, width, found = y.shape[1], c // self.heads, []
        for head in range(self.heads):
            channels = slice(head * width, (head + 1) * width)
            a, b, d = q[..., channels], k[..., channels], v[..., channels]
            if self.attention == "linear":
                a, b = F.elu(a) + 1, F.elu(b) + 1
                total = 1 / (torch.einsum("lsd,ld->ls", a, b.sum(1)) + 1e-6)
                found.append((a @ (b.transpose(1, 2) @ (d / length))) * total[..., None] * length)
            else:
                found.append((a @ b.transpose(1, 2) / width**0.5).softmax(-1) @ d)
        y = y + torch.cat(found, -1)
        inner = F.relu(self.linear(self.norm(y, f"{name}.norm2"), f"{name}.MLP.0"))
        y = y + self.linear(inner, f"{name}.MLP.2")
        y = y[:, :t].permute(1, 2, 0).unflatten(2, pooled.shape[2:])
        return x + F.interpolate(y, (h, w), mode="bilinear", align_corners=True)

    def up(self, x: Tensor, guide: Tensor, name: str) -> Tensor:
        x = F.conv_transpose2d(x, self.w[f"{name}.up.weight"], self.w[f"{name}.up.bias"], stride=2)
        x = torch.cat([x, guide], 1)
        for conv, norm in ((0, 1), (3, 4)):
            x = self.conv(x, f"{name}.conv.double_conv.{conv}")
            weight, bias = (
                self.w[f"{name}.conv.double_conv.{norm}.{part}"] for part in ("weight", "bias")
            )
            x = F.relu(F.group_norm(x, max(1, len(weight) // 16), weight, bias))
        return x


def reference_loss(logits: Tensor, labels: Tensor, ignore: int = 255) -> Tensor:
    """Binary cross-entropy with one-hot targets; ignored pixels are negative for every class. One
    image."""
    logits = F.interpolate(logits, labels.shape[-2:], mode="bilinear", align_corners=False)
    target = torch.zeros_like(logits)
    for number in range(logits.shape[1]):
        target[:, number] = ((labels == number) & (labels != ignore)).to(logits)
    return F.binary_cross_entropy_with_logits(logits, target)
