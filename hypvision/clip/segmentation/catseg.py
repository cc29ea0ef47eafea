"""CAT-Seg's cost aggregation, from similarities of patches and class names to a mask for each
class.

Cho et al., "CAT-Seg: Cost Aggregation for Open-Vocabulary Semantic Segmentation", CVPR 2024;
HyperCLIP is trained with this head. Parameters have their official names, so official checkpoints
load as they are.

The official code repeats some computations for every class or position; this code does them once. A
linear map of [x, guidance] is the sum of two maps, and the map of the guidance is the same for all
classes. The up to 255 padding tokens of the class attention are equal. Grids may have any size, and
there may be any number of classes; between the layers, maps are channels-last, (B, T, H, W, C).

B: images, T: classes, P: prompt templates, E: size of the embeddings.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hypvision.geometry.numerics import exact
from hypvision.io import HypvisionError, one_of

ABSENT = -100.0
"""Logit of classes that are not among the best ``pad_len``, which the head does not process."""


class WindowAttention(nn.Module):
    """Attention in windows, without position bias; queries and keys are computed from [x,
    guidance]."""

    def __init__(self, dim: int, guidance_dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim + guidance_dim, dim)
        self.k = nn.Linear(dim + guidance_dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, guidance: Tensor | None, window: int, shift: int) -> Tensor:
        """Map ``x`` ``(B, T, H, W, C)`` and ``guidance`` ``(B, 1, H, W, G)`` to ``(B, T, H, W,
        C)``."""
        b, t, h, w, c = x.shape
        q, k = (_joint_linear(layer, x, guidance) for layer in (self.q, self.k))
        packed = torch.stack([q, k, self.v(x)])
        pad = (-h % window, -w % window)
        if any(pad):
            packed = F.pad(packed, (0, 0, 0, pad[1], 0, pad[0]))
        rows = h + pad[0]
        columns = w + pad[1]
        if shift:
            packed = packed.roll((-shift, -shift), (3, 4))
        packed = packed.reshape(
            3, b * t, rows // window, window, columns // window, window, self.heads, -1
        )
        packed = packed.permute(0, 1, 2, 4, 6, 3, 5, 7).reshape(
            3, b * t, -1, window**2, c // self.heads
        )
        mask = window_mask((h, w), (rows, columns), window, shift, x.device)
        if mask is not None:
            mask = mask.repeat_interleave(self.heads, 0).to(packed.dtype)
        q, k, v = packed.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.reshape(b * t, rows // window, columns // window, self.heads, window, window, -1)
        y = y.permute(0, 1, 4, 2, 5, 3, 6).reshape(b, t, rows, columns, c)
        if shift:
            y = y.roll((shift, shift), (2, 3))
        return self.proj(y[:, :, :h, :w])


def _joint_linear(layer: nn.Linear, x: Tensor, guidance: Tensor | None) -> Tensor:
    """Apply ``layer`` to [x, guidance]; the guidance has size 1 along axes where it is constant."""
    if guidance is None:
        return layer(x)
    c = x.shape[-1]
    return F.linear(x, layer.weight[:, :c], layer.bias) + F.linear(guidance, layer.weight[:, c:])


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def window_mask(
    size: tuple[int, int], padded: tuple[int, int], window: int, shift: int, device: torch.device
) -> Tensor | None:
    """Return an additive mask ``(windows, N, N)`` for attention, -100 between pixels that are
    neighbours only by the shift or the padding; None if there are no such pixels."""
    if not shift and size == padded:
        return None
    region = torch.zeros(padded, device=device)
    if shift:  # the last window of each row and column covers two regions of the image
        places = [torch.arange(side - 1, -1, -1, device=device) for side in padded]
        rows, columns = ((place < window).float() + (place < shift) for place in places)
        region = 3 * rows[:, None] + columns
    if size != padded:
        outside = torch.ones(padded, device=device)
        outside[: size[0], : size[1]] = 0
        region = region + 100 * (outside.roll((-shift, -shift), (0, 1)) if shift else outside)
    region = region.reshape(padded[0] // window, window, padded[1] // window, window)
    region = region.permute(0, 2, 1, 3).reshape(-1, window**2)
    return (region[:, None] != region[:, :, None]).float() * -100.0


class SwinBlock(nn.Module):
    def __init__(self, dim: int, guidance_dim: int, heads: int, window: int, shifted: bool):
        super().__init__()
        self.window = window
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, guidance_dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor, guidance: Tensor | None) -> Tensor:
        window = min(self.window, *x.shape[2:4])
        shift = self.shifted * (min(x.shape[2:4]) > self.window) * (self.window // 2)
        x = x + self.attn(self.norm1(x), guidance, window, shift)
        return x + self.mlp(self.norm2(x))


class SpatialAggregation(nn.Module):
    """Two Swin blocks over the positions of each class."""

    def __init__(self, dim: int, guidance_dim: int, heads: int, window: int):
        super().__init__()
        self.block_1 = SwinBlock(dim, guidance_dim, heads, window, False)
        self.block_2 = SwinBlock(dim, guidance_dim, heads, window, True)
        self.guidance_norm = nn.LayerNorm(guidance_dim) if guidance_dim else None

    def forward(self, x: Tensor, guidance: Tensor | None) -> Tensor:
        """Update ``x`` ``(B, T, H, W, C)`` with ``guidance`` ``(B, H, W, G)`` from the patches."""
        if guidance is not None and self.guidance_norm is not None:
            guidance = self.guidance_norm(guidance)[:, None]
        return self.block_2(self.block_1(x, guidance), guidance)


class ClassAttention(nn.Module):
    """Attention over classes at each position, linear or full, without an output projection."""

    def __init__(self, dim: int, guidance_dim: int, heads: int, attention: str):
        super().__init__()
        self.heads = heads
        self.attention = attention
        self.q = nn.Linear(dim + guidance_dim, dim)
        self.k = nn.Linear(dim + guidance_dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(
        self,
        x: Tensor,
        guidance: Tensor | None,
        pad: Tensor | None,
        pad_guidance: Tensor | None,
        pads: int,
    ) -> Tensor:
        """Let the classes of ``x`` ``(B, T, h, w, C)`` attend to each other and, if ``pad`` ``(1,
        1, 1, 1, C)`` is given, to ``pads`` more classes that are all equal to it."""
        parts = _joint_linear(self.q, x, guidance), _joint_linear(self.k, x, guidance), self.v(x)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        if pad is not None:
            pad_k = _joint_linear(self.k, pad, pad_guidance).unflatten(-1, (self.heads, -1))
            pad_v = self.v(pad).unflatten(-1, (self.heads, -1))
        if self.attention == "linear":
            # float32, because in half precision sums of positive products over the classes lose
            # digits.
            with exact(x.device):
                q = F.elu(_at_least_float32(q)) + 1
                k = F.elu(_at_least_float32(k)) + 1
                v = _at_least_float32(v)
                weighted = torch.einsum("bthwnd,bthwne->bhwnde", k, v)
                total = k.sum(1)
                if pad is not None:
                    pad_k = F.elu(_at_least_float32(pad_k)) + 1
                    pad_v = _at_least_float32(pad_v)
                    weighted = weighted + pads * torch.einsum("bthwnd,bthwne->bhwnde", pad_k, pad_v)
                    total = total + pads * pad_k.sum(1)
                found = torch.einsum("bthwnd,bhwnde->bthwne", q, weighted)
                scale = torch.einsum("bthwnd,bhwnd->bthwn", q, total) + 1e-6
                found = found / scale[..., None]
            return found.flatten(-2).to(x.dtype)
        q, k, v = (part.permute(0, 2, 3, 4, 1, 5) for part in (q, k, v))  # (B, h, w, heads, T, d)
        bias = None
        if pad is not None:  # n equal keys act as one key whose score is larger by log(n)
            t = k.shape[-2]
            size = (*k.shape[:-2], 1, k.shape[-1])
            k = torch.cat([k, pad_k.permute(0, 2, 3, 4, 1, 5).expand(size)], -2)
            v = torch.cat([v, pad_v.permute(0, 2, 3, 4, 1, 5).expand(size)], -2)
            bias = torch.zeros(t, t + 1, device=x.device, dtype=q.dtype)
            bias[:, -1] = math.log(pads)
        found = F.scaled_dot_product_attention(
            q.flatten(0, 2), k.flatten(0, 2), v.flatten(0, 2), attn_mask=bias
        )
        return found.unflatten(0, q.shape[:3]).permute(0, 4, 1, 2, 3, 5).flatten(-2)


class ClassAggregation(nn.Module):
    """Attention over the classes at every position; in training on a coarser grid."""

    def __init__(self, dim: int, guidance_dim: int, heads: int, attention: str, pad_len: int):
        super().__init__()
        self.pad_len = pad_len
        if pad_len:
            self.padding_tokens = nn.Parameter(torch.zeros(1, 1, dim))
            self.padding_guidance = (
                nn.Parameter(torch.zeros(1, 1, guidance_dim)) if guidance_dim else None
            )
        self.attention = ClassAttention(dim, guidance_dim, heads, attention)
        self.MLP = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor, guidance: Tensor | None, pool: tuple[int, int]) -> Tensor:
        """Update ``x`` ``(B, T, H, W, C)`` with ``guidance`` ``(B or 1, T, G)`` from the class
        embeddings."""
        b, t, h, w, _ = x.shape
        y = x
        pool = (min(pool[0], h), min(pool[1], w))
        if pool != (1, 1):
            y = (
                F.avg_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), pool)
                .permute(0, 2, 3, 1)
                .unflatten(0, (b, t))
            )
        pads = max(0, self.pad_len - t)
        pad = pad_guidance = None
        if pads:
            pad = self.norm1(self.padding_tokens)[:, :, None, None]
            if guidance is not None and self.padding_guidance is not None:
                pad_guidance = self.padding_guidance[:, :, None, None]
        if guidance is not None:
            guidance = guidance[:, :, None, None]
        y = y + self.attention(self.norm1(y), guidance, pad, pad_guidance, pads)
        y = y + self.MLP(self.norm2(y))
        if pool != (1, 1):
            y = y.flatten(0, 1).permute(0, 3, 1, 2)
            y = (
                F.interpolate(y, (h, w), mode="bilinear", align_corners=True)
                .permute(0, 2, 3, 1)
                .unflatten(0, (b, t))
            )
        return x + y


class AggregatorLayer(nn.Module):
    def __init__(
        self,
        dim: int,
        guidance_dim: int,
        text_dim: int,
        heads: int,
        window: int,
        attention: str,
        pad: int,
    ):
        super().__init__()
        self.swin_block = SpatialAggregation(dim, guidance_dim, heads, window)
        self.attention = ClassAggregation(dim, text_dim, heads, attention, pad)

    def forward(
        self, x: Tensor, guidance: Tensor | None, text: Tensor | None, pool: tuple[int, int]
    ) -> Tensor:
        return self.attention(self.swin_block(x, guidance), text, pool)


class DoubleConv(nn.Module):
    def __init__(self, in_channels: int, channels: int):
        super().__init__()
        layers: list[nn.Module] = []
        for given in (in_channels, channels):
            convolution = nn.Conv2d(given, channels, 3, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(max(1, channels // 16), channels), nn.ReLU()]
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x: Tensor, guidance: Tensor | None, classes: int) -> Tensor:
        """Map ``x`` ``(B * T, C, H, W)`` with the ``guidance`` ``(B, G, H, W)`` of each image."""
        first, *others = self.double_conv
        weight = first.get_parameter("weight")
        c = x.shape[1]
        y = F.conv2d(x, weight[:, :c], padding=1)
        if guidance is not None:
            of_image = F.conv2d(guidance, weight[:, c:], padding=1)
            y = (y.unflatten(0, (-1, classes)) + of_image[:, None]).flatten(0, 1)
        for layer in others:
            y = layer(y)
        return y


class Up(nn.Module):
    def __init__(self, in_channels: int, channels: int, guidance: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels - guidance, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, channels)

    def forward(self, x: Tensor, guidance: Tensor | None, classes: int) -> Tensor:
        return self.conv(self.up(x), guidance, classes)


class CATSegHead(nn.Module):
    """CAT-Seg's aggregator.

    Args:
        embed_dim, prompts: length E of embeddings, and number P of prompt templates.
        hidden, layers, heads: channels of the cost maps, aggregator layers, attention heads.
        window: side of the attention windows, in patches.
        pool: pooling of the class attention in training; at test time it is (1, 1).
        guidance, text_guidance: channels of the projected embeddings of patches and of classes; 0:
            no such guidance.
        decoder: channels of the two decoder stages.
        decoder_in, decoder_guidance: channels of the two maps that guide the decoder, before and
            after their projection; zeros: no such maps.
        attention: ``"linear"`` or ``"full"`` attention over classes.
        pad_len: number of classes to which learned tokens fill up fewer classes, and to whose best
            more classes are reduced; 0: any number.
        class_chunk: number of classes that the decoder processes at a time without gradients.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        prompts: int = 1,
        hidden: int = 128,
        layers: int = 2,
        heads: int = 4,
        window: int = 12,
        pool: tuple[int, int] = (2, 2),
        guidance: int = 128,
        text_guidance: int = 128,
        decoder: tuple[int, int] = (64, 32),
        decoder_in: tuple[int, int] = (256, 128),
        decoder_guidance: tuple[int, int] = (32, 16),
        attention: str = "linear",
        pad_len: int = 256,
        class_chunk: int = 128,
    ):
        super().__init__()
        if hidden % heads:
            raise HypvisionError(
                f"CATSegHead: hidden={hidden} is not divisible by heads={heads}. Give a multiple."
            )
        one_of(("linear", "full"), attention=attention)
        self.pool = tuple(pool)
        self.pad_len = pad_len
        self.class_chunk = class_chunk
        self.prompts = prompts
        self.checkpointing = False
        self.conv1 = nn.Conv2d(prompts, hidden, kernel_size=7, padding=3)
        self.guidance_projection = self.text_guidance_projection = None
        if guidance:
            self.guidance_projection = nn.Sequential(
                nn.Conv2d(embed_dim, guidance, 3, padding=1), nn.ReLU()
            )
        if text_guidance:
            self.text_guidance_projection = nn.Sequential(
                nn.Linear(embed_dim, text_guidance), nn.ReLU()
            )
        if not any(decoder_in):
            decoder_guidance = (0, 0)
        self.decoder_guidance_projection = nn.ModuleList(
            nn.Sequential(nn.Conv2d(given, wanted, 3, padding=1), nn.ReLU())
            for given, wanted in zip(decoder_in, decoder_guidance)
            if given
        )
        self.layers = nn.ModuleList(
            AggregatorLayer(hidden, guidance, text_guidance, heads, window, attention, pad_len)
            for _ in range(layers)
        )
        self.decoder1 = Up(hidden, decoder[0], decoder_guidance[0])
        self.decoder2 = Up(decoder[0], decoder[1], decoder_guidance[1])
        self.head = nn.Conv2d(decoder[1], 1, 3, padding=1)

    def forward(self, features: Tensor, text: Tensor, maps: tuple[Tensor, ...] = ()) -> Tensor:
        """Return logits ``(B, T, 4 H, 4 W)`` of each class.

        Args:
            features: patch embeddings ``(B, E, H, W)``, of any length.
            text: class embeddings ``(T, P, E)``, of unit length.
            maps: maps that guide the decoder, ``(B, ., 2 H, 2 W)`` and ``(B, ., 4 H, 4 W)``.

        Classes that are not among the ``pad_len`` best ones of an image have the logit
        :data:`ABSENT`.
        """
        needed = len(self.decoder_guidance_projection)
        if text.dim() != 3 or text.shape[1] != self.prompts:
            raise HypvisionError(
                f"The head was made for {self.prompts} prompt template(s), but the text embeddings "
                f"have the shape {tuple(text.shape)} instead of (classes, {self.prompts}, size)."
            )
        if len(maps) < needed:
            raise HypvisionError(
                f"The head needs {needed} maps that guide its decoder, got {len(maps)}. Give one "
                "for each number in decoder_in, or make the head with decoder_in=(0, 0)."
            )
        count = text.shape[0]
        kept = None
        units = F.normalize(_at_least_float32(features), dim=1)
        text = text.to(units.dtype)[None]
        if self.pad_len and count > self.pad_len:
            with torch.no_grad():
                best = torch.einsum("behw,tpe->btphw", units, text[0]).flatten(2).amax(-1)
                kept = best.topk(self.pad_len, dim=1).indices
            text = text[0][kept]  # (B, pad_len, P, E)
        corr = torch.einsum("behw,btpe->btphw", units, text.expand(len(units), -1, -1, -1))
        b, t = corr.shape[:2]
        x = (
            self.conv1(corr.flatten(0, 1).to(self.conv1.weight.dtype))
            .permute(0, 2, 3, 1)
            .unflatten(0, (b, t))
        )

        x = self._aggregate(x, features, text)
        guides = [project(given) for project, given in zip(self.decoder_guidance_projection, maps)]
        chunk = t if torch.is_grad_enabled() else self.class_chunk
        logits = torch.cat([self._decode(part, guides) for part in x.split(chunk, dim=1)], dim=1)
        if kept is None:
            return logits
        full = logits.new_full((b, count, *logits.shape[2:]), ABSENT)
        return full.scatter(1, kept[..., None, None].expand_as(logits), logits)

    def _aggregate(self, x: Tensor, features: Tensor, text: Tensor) -> Tensor:
        """Return the similarities ``x`` after the aggregator layers, guided by the embeddings."""
        guidance = words = None
        if self.guidance_projection is not None:
            guidance = self.guidance_projection(features).permute(0, 2, 3, 1)
        if self.text_guidance_projection is not None:
            mean = F.normalize(text.mean(2), dim=-1).to(self.conv1.weight.dtype)
            words = self.text_guidance_projection(mean)
        pool = self.pool if self.training else (1, 1)
        for layer in self.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, guidance, words, pool, use_reentrant=False)
            else:
                x = layer(x, guidance, words, pool)
        return x

    def _decode(self, x: Tensor, guides: list[Tensor]) -> Tensor:
        b, t = x.shape[:2]
        y = x.flatten(0, 1).permute(0, 3, 1, 2)
        for number, stage in enumerate((self.decoder1, self.decoder2)):
            guide = guides[number] if guides else None
            if self.checkpointing and torch.is_grad_enabled():
                y = checkpoint(stage, y, guide, t, use_reentrant=False)
            else:
                y = stage(y, guide, t)
        return self.head(y).unflatten(0, (b, t))[:, :, 0]
