"""Vision transformer on the hyperboloid with aggregation in the tangent space (HexFormer).

Paper: "HexFormer: Hyperbolic Vision Transformer with Exponential Map Aggregation", Alyoussef et al.
(arXiv 2601.19849). Linear layers set the time of a point by a sigmoid; attention averages the
values' logarithms at the origin; norms take their mean and spread over the tokens of an image.

Tokens are space parts of points ``(B, n, 1 + h w)``, the class token first, as in
:mod:`hypvision.models.lorentz_vit`. Three things are ours: other curvatures than 1, for which the
published linear layer leaves the hyperboloid; GELU in the MLP; and the last norm, whose mean the
released code takes over the class tokens of a batch, so that an image's logits depend on the other
images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, calculate_drop_path_rates, resample_abs_pos_embed, trunc_normal_
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from timm.models._manipulate import checkpoint
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import exact, heading
from hypvision.io.checks import at_least, between, one_of
from hypvision.io.errors import ArgumentError
from hypvision.nn import LorentzConv2d, ToTangent
from hypvision.nn.functional import (
    divided,
    precise,
    timed,
    to_centroids,
    with_time,
)
from hypvision.nn.linear import timed_linear

from .base import COMMON_CFG, FeatureMaps, StagedModel, build_model, check_pool, with_zoo
from .lorentz_resnet import LorentzClassifier
from .lorentz_vit import TokenPool

SCALE = 2.3  # logarithm of the largest time above that of the origin and MARGIN
MARGIN = 0.5
LONGEST = 40.0  # largest radius after a norm, in units of the radius of curvature


class TimedLinear(nn.Module):
    """HexFormer's linear layer: a map sets the direction of the result, and one more row of its
    weight, by a sigmoid, the time.

    Args:
        inside, outside: space dimensions of points and results.
        manifold: the hyperboloid.
        parts: number of such layers on the same points, as one product.
        heads: into how many points a result is split, which share their time.
        activation: a module between the map and what sets the size; None for none.

    Attributes:
        weight, time_weight: of the space part ``(parts * (1 + outside), inside)`` and of the time;
            the first row of a part is that of the result's time.

    Shapes:
        space parts ``(B, N, inside)`` to ``(B, N, parts, heads, outside / heads)``.
    """

    def __init__(
        self,
        inside: int,
        outside: int,
        manifold: Lorentz,
        parts: int = 1,
        heads: int = 1,
        activation: nn.Module | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.manifold = manifold
        self.parts = parts
        self.heads = heads
        self.activation = nn.Identity() if activation is None else activation
        rows = parts * (1 + outside)
        self.weight = nn.Parameter(torch.empty(rows, inside, device=device, dtype=dtype))
        self.time_weight = nn.Parameter(torch.empty(rows, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Initialise by the normal distribution of Xavier, as published."""
        std = (2 / (len(self.weight) / self.parts + self.weight.shape[1] + 1)) ** 0.5
        nn.init.normal_(self.weight, std=std)
        nn.init.normal_(self.time_weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        space, time = timed(x, c)
        out = timed_linear(space, time, self.weight, self.time_weight, None)
        gate, direction = out.unflatten(-1, (self.parts, -1)).split([1, self.outside], -1)
        direction = self.activation(direction).unflatten(-1, (self.heads, -1))
        return at_time(direction, gate.unsqueeze(-1), c).to(x.dtype)

    @property
    def outside(self) -> int:
        """The space dimension of a result."""
        return len(self.weight) // self.parts - 1


def at_time(direction: Tensor, gate: Tensor, c: float | Tensor) -> Tensor:
    """Return the vectors ``(..., m)``, scaled to the space parts of the points whose times
    ``sigmoid(gate) exp(SCALE) + 1/sqrt(c) + MARGIN`` are, at least float32."""
    # MARGIN + exp(SCALE) sigmoid, in one operation
    rise = torch.rsub(torch.sigmoid(precise(gate)), MARGIN, alpha=-math.exp(SCALE))
    # The clamp is the published one.
    ray, _ = heading(precise(direction), 1e-4)
    return ray * torch.sqrt(rise * (rise + 2 / c**0.5))


class TokenNorm(nn.Module):
    """Normalisation of the points of an image: their centroid moves to the point ``beta``, and
    their distances from it are multiplied by ``gamma`` over the mean distance.

    Shapes:
        space parts ``(B, N, n)`` to such.
    """

    def __init__(self, dim: int, manifold: Lorentz, factory: dict[str, Any]):
        super().__init__()
        self.manifold = manifold
        self.beta = nn.Parameter(torch.zeros(dim, **factory))  # the space part of a point
        self.gamma = nn.Parameter(torch.ones(1, **factory))

    def forward(self, x: Tensor) -> Tensor:
        with exact(x.device):
            root = self.manifold.c**0.5
            space, time = timed(times(precise(x), root), 1.0)  # in units of the radius of curvature
            mean = to_centroids(torch.cat([time, space], -1).mean(1, keepdim=True), 1.0)
            mean_time, mean_space = mean.split([1, x.shape[-1]], -1)
            ray, size = heading(moved(space, time, -mean_space, mean_time))
            radius = torch.asinh(size)
            spread = times(radius.mean(1, keepdim=True), 1 / root)
            radius = F.hardtanh(radius * (self.gamma / (spread + 1e-5)), -LONGEST, LONGEST)
            beta, beta_time = timed(times(precise(self.beta), root).view(1, 1, -1), 1.0)
            there = (ray * torch.sinh(radius)).flatten(0, 1).unsqueeze(0)  # all images as one
            out = moved(there, torch.cosh(radius).view(1, -1, 1), beta, beta_time)
            return times(out.view_as(x), 1 / root).to(x.dtype)


def times(x: Tensor, number: float | Tensor) -> Tensor:
    """Return the product; a factor of 1 takes no operation."""
    one = isinstance(number, float) and number == 1
    return x if one else x * number


def moved(space: Tensor, time: Tensor, to: Tensor, to_time: Tensor) -> Tensor:
    """Return the space parts of points ``(B, N, n)``, given with their times ``(B, N, 1)``, after
    the boost that takes the origin to the point with the space part ``to`` ``(B, 1, n)``; the
    curvature is 1."""
    push = torch.baddbmm(time, space, (to / (1 + to_time)).mT)
    return torch.baddbmm(space, push, to)


class Attention(nn.Module):
    """Attention by squared Lorentz distances; the values' logarithms at the origin are averaged.

    Shapes:
        space parts ``(B, N, n)`` to such.
    """

    def __init__(
        self, dim: int, heads: int, manifold: Lorentz, drop: float, factory: dict[str, Any]
    ):
        super().__init__()
        self.manifold = manifold
        self.scale = (dim / heads) ** -0.5
        self.qkv = TimedLinear(dim, dim, manifold, parts=3, heads=heads, **factory)
        self.o = TimedLinear(dim, dim, manifold, activation=nn.Dropout(drop), **factory)
        self.temperature = nn.Parameter(torch.ones(1, **factory))

    def forward(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        pairs, values = self.qkv(x).permute(2, 0, 3, 1, 4).split([2, 1])
        width = values.shape[-1]
        # Columns of zeros are added up to a multiple of 8, which fused kernels need.
        spare = -(width + 1) % 8
        query, key = with_time(pairs, c, spare, negative=True).to(x.dtype).unbind()
        query = divided(query, self.temperature.to(query.dtype))
        value = F.pad(along(values[0], torch.asinh, c).to(x.dtype), (0, 1 + spare))
        mean = F.scaled_dot_product_attention(query, key, value, scale=2 * self.scale)
        points = along(mean[..., :width], torch.sinh, c).to(x.dtype)
        out: Tensor = self.o(points.transpose(1, 2).flatten(2))
        return out.flatten(2)


def along(x: Tensor, function: Callable[[Tensor], Tensor], c: float | Tensor) -> Tensor:
    """Return the vectors ``(..., n)`` with the lengths ``function(sqrt(c) |x|) / sqrt(c)``, at
    least float32."""
    ray, size = heading(precise(x))
    root = c**0.5
    return ray * times(function(times(size, root)), 1 / root)


for _layer in (Attention, TimedLinear, TokenNorm):
    register_notrace_module(_layer)


class Block(nn.Module):
    """Block of a transformer on space parts ``(B, n, N)``; connections add space parts."""

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int,
        manifold: Lorentz,
        drop: float,
        drop_path: float,
        factory: dict[str, Any],
    ):
        super().__init__()
        self.grad_checkpointing = False
        self.norm1 = TokenNorm(dim, manifold, factory)
        self.attn = Attention(dim, heads, manifold, drop, factory)
        self.norm2 = TokenNorm(dim, manifold, factory)
        inner = nn.Sequential(nn.GELU(), nn.Dropout(drop))
        self.fc1 = TimedLinear(dim, hidden, manifold, activation=inner, **factory)
        self.fc2 = TimedLinear(hidden, dim, manifold, activation=nn.Dropout(drop), **factory)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def _tokens(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self._mlp(self.norm2(x)))
        return out

    def _mlp(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.fc1(x).flatten(2))
        return out.flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.transpose(1, 2)
        tokens = (
            checkpoint(self._tokens, tokens) if self.grad_checkpointing else self._tokens(tokens)
        )
        return tokens.transpose(1, 2)


class PatchEmbed(nn.Module):
    """Layer from images to tokens ``(B, n, 1 + h w)``: a linear layer of each patch, the class
    token in front, and positions, which are added to the space parts."""

    def __init__(
        self,
        in_chans: int,
        dim: int,
        patch: int,
        grid: tuple[int, int],
        manifold: Lorentz,
        factory: dict[str, Any],
    ):
        super().__init__()
        self.manifold = manifold
        self.grid = grid
        # The first channel of the convolution sets the times.
        self.conv = LorentzConv2d(
            in_chans, 1 + dim, patch, manifold, stride=patch, bias=False, **factory
        )
        self.class_token = nn.Parameter(torch.empty(1, 1, dim, **factory))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + grid[0] * grid[1], dim, **factory))

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv(x)
        tokens = found.flatten(2).transpose(1, 2)
        tokens = at_time(tokens[..., 1:], tokens[..., :1], self.manifold.c).to(x.dtype)
        first = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        positions = resampled(self.pos_embed, found.shape[2:], self.grid)
        tokens = torch.cat([first, tokens], 1) + positions.to(tokens.dtype)
        return tokens.transpose(1, 2)


register_notrace_module(PatchEmbed)


def resampled(positions: Tensor, size: Sequence[int], old: Sequence[int]) -> Tensor:
    """Return positions ``(1, 1 + h w, n)`` for a grid of another size; that of the class token
    stays."""
    if tuple(size) == tuple(old):
        return positions
    out: Tensor = resample_abs_pos_embed(positions, list(size), list(old))
    return out


class TangentClassifier(nn.Linear):
    """Linear layer of tangent vectors at the origin: of the logarithms of points, which are given
    by their space parts ``(B, n)``."""

    def __init__(self, in_features: int, num_classes: int, manifold: Lorentz, **factory: Any):
        super().__init__(in_features, num_classes, **factory)
        self.to_tangent = ToTangent(manifold)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.to_tangent(x))


HEADS = {"lorentz": LorentzClassifier, "hybrid": TangentClassifier}


class HexFormer(StagedModel):
    """Vision transformer on the hyperboloid.

    Args:
        img_size: side of the images, or height and width, for which positions are learned; images
            of other sizes get resampled positions.
        patch_size: side of the patches, in pixels.
        in_chans: input channels.
        num_classes: classes of the head, at least 0; 0 for none.
        global_pool: ``"token"``, the class token, as published; ``"avg"``, the centroid of the
            other tokens; ``""`` for none.
        classifier: ``"lorentz"``, distances from hyperplanes; ``"hybrid"``, a linear layer of the
            logarithm at the origin.
        embed_dim: space dimension of the tokens.
        depth: number of blocks.
        num_heads: number of heads; it must divide ``embed_dim``.
        hidden_dim: space dimension inside the MLP of a block.
        curvature: ``c`` of all points.
        drop_rate: rate of dropout before the head.
        proj_drop_rate: rate of dropout inside linear layers.
        drop_path_rate: rate of stochastic depth; 0.1 as published.

    Raises:
        ValueError: an argument has an unknown value, or the image is no whole number of patches.
    """

    stem: PatchEmbed

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        classifier: str = "lorentz",
        embed_dim: int = 192,
        depth: int = 9,
        num_heads: int = 12,
        hidden_dim: int = 384,
        curvature: float = 1.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        one_of(HEADS, classifier=classifier)
        at_least(1, integer=True, patch_size=patch_size, depth=depth, num_heads=num_heads)
        between(0, 1, drop_rate=drop_rate, proj_drop_rate=proj_drop_rate)
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        if height % patch_size or width % patch_size:
            raise ArgumentError(
                f"img_size must be a multiple of patch_size={patch_size}, got {height} x {width}."
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.patch_size = patch_size
        self.classifier = classifier
        self.num_features = self.head_hidden_size = embed_dim
        self.manifold = Lorentz(curvature).to(device)
        grid = (height // patch_size, width // patch_size)
        self.stem = PatchEmbed(in_chans, embed_dim, patch_size, grid, self.manifold, factory)
        rates: list[Any] = list(calculate_drop_path_rates(drop_path_rate, depth))
        self.stages = nn.ModuleList(
            Block(embed_dim, num_heads, hidden_dim, self.manifold, proj_drop_rate, rate, factory)
            for rate in rates
        )
        self.feature_info = [
            dict(num_chs=embed_dim, reduction=patch_size, module=f"stages.{i}")
            for i in range(depth)
        ]
        self.norm = TokenNorm(embed_dim, self.manifold, factory)
        self.to_tangent = ToTangent(self.manifold)
        self._set_pool(global_pool, num_classes)
        self._set_head(num_classes)
        self.init_weights()

    def _set_pool(self, pool_type: str, num_classes: int) -> None:
        check_pool(pool_type, num_classes, ("token", "avg", ""))
        pool = TokenPool(self.manifold, pool_type) if pool_type else nn.Identity()
        self.global_pool = pool

    def _set_head(self, num_classes: int) -> None:
        at_least(0, integer=True, num_classes=num_classes)
        weight = self.stem.conv.weight
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes:
            self.head = HEADS[self.classifier](
                self.num_features,
                num_classes,
                self.manifold,
                device=weight.device,
                dtype=weight.dtype,
            )

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise linear layers as published, by the normal distribution of Xavier; positions
        and the class token by that of a deviation of 0.02."""
        for module in self.modules():
            if isinstance(module, TimedLinear):
                module.reset_parameters()
        conv = self.stem.conv
        std = (2 / (conv.weight[0].numel() + 1 + len(conv.weight))) ** 0.5
        nn.init.normal_(conv.weight, std=std)
        nn.init.normal_(conv.time_weight, std=std)
        trunc_normal_(self.stem.pos_embed, std=0.02)
        trunc_normal_(self.stem.class_token, std=0.02)

    # Methods of timm's interface

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: positions, the class token,
        temperatures and those of norms."""
        kept = ("pos_embed", "class_token", "temperature", "beta", "gamma")
        return {name for name, _ in self.named_parameters() if name.endswith(kept)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns of parameter groups, from the stem to the head, for layer-wise
        learning rates."""
        return dict(stem=r"^stem", blocks=[(r"^stages\.(\d+)", None), (r"^norm", (99999,))])

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` (0: none), and the pooling if it is
        given."""
        if global_pool is not None:
            self._set_pool(global_pool, num_classes)
        self._set_head(num_classes)
        for part in (self.global_pool, self.head):
            part.train(self.training)

    def _normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last tokens ``(B, n, 1 + h w)`` of images ``(B, in_chans, H, W)``, after the
        final norm."""
        x = self._enter(x)
        for stage in self.stages:
            x = stage(x)
        return self._normed(x)

    def _stage_map(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        """Return the tokens in Euclidean form: tangent vectors at the origin."""
        out: Tensor = self.to_tangent(self._normed(x) if norm else x)
        return out

    def _without_token(self, x: Tensor, size: Sequence[int]) -> Tensor:
        out: Tensor = x[..., 1:].unflatten(2, [side // self.patch_size for side in size])
        return out

    def _prune(self, taken: list[int], last: int, prune_norm: bool) -> None:
        if prune_norm:
            self.norm = nn.Identity()


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: HexFormer) -> dict[str, Tensor]:
    """Return the weights in a checkpoint by the model's names; positions of another square grid are
    resampled. No official checkpoints are published."""
    weights = dict(state_dict)
    positions = weights.get("stem.pos_embed")
    if positions is not None and positions.shape != model.stem.pos_embed.shape:
        side = int((positions.shape[1] - 1) ** 0.5)
        weights["stem.pos_embed"] = resampled(positions, model.stem.grid, (side, side))
    return weights


# Registration in timm


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        **COMMON_CFG,
        "input_size": (3, 224, 224),
        "min_input_size": (3, 32, 32),
        "pool_size": (14, 14),
        "crop_pct": 0.9,
        "first_conv": "stem.conv",
        "license": "mit",
        "paper_name": "HexFormer: Hyperbolic Vision Transformer with Exponential Map Aggregation",
        "paper_ids": "arXiv:2601.19849",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "hexformer_tiny.untrained": _cfg(),
        "hexformer_small.untrained": _cfg(),
        "hexformer_base.untrained": _cfg(),
    }
)


def _create(variant: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    _, kwargs = with_zoo(variant, pretrained, {}, kwargs)
    return build_model(
        HexFormer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=dict(out_indices=min(4, kwargs.get("depth", 12)), feature_cls=FeatureMaps),
        **kwargs,
    )


@register_model
def hexformer_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a HexFormer of 9 blocks, 192 space dimensions and 12 heads."""
    args = dict(depth=9, embed_dim=192, hidden_dim=384, num_heads=12)
    return _create("hexformer_tiny", pretrained, **dict(args, **kwargs))


@register_model
def hexformer_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a HexFormer of 12 blocks, 384 space dimensions and 6 heads."""
    args = dict(depth=12, embed_dim=384, hidden_dim=768, num_heads=6)
    return _create("hexformer_small", pretrained, **dict(args, **kwargs))


@register_model
def hexformer_base(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a HexFormer of 12 blocks, 768 space dimensions and 12 heads."""
    args = dict(depth=12, embed_dim=768, hidden_dim=3072, num_heads=12)
    return _create("hexformer_base", pretrained, **dict(args, **kwargs))
