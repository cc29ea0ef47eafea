"""Vision transformer on the hyperboloid with aggregation in the tangent space (HexFormer).

Paper: "HexFormer: Hyperbolic Vision Transformer with Exponential Map Aggregation", Alyoussef et al.
(arXiv 2601.19849). Linear layers set the time of a point by a sigmoid; attention averages the
values' logarithms at the origin; norms take their mean and spread over the tokens of an image.

Tokens are space parts of points ``(B, n, 1 + h w)``, the class token first, as in
:mod:`hypvision.models.lorentz_vit`. Three things are ours: other curvatures than 1, for which the
published linear layer leaves the hyperboloid; GELU in the MLP; and the last norm, whose mean the
released code takes over the class tokens of a batch (:class:`BatchTokenNorm`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, calculate_drop_path_rates, resample_abs_pos_embed, trunc_normal_
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from torch import Tensor, nn
from torch.types import Device

from hypvision.checkpoints.match import unknown_name
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import exact, heading
from hypvision.io import HypvisionError, Plain, explaining, one_of
from hypvision.nn import LorentzConv2d, ToTangent
from hypvision.nn.functional import divided, precise, timed, to_centroids, with_time
from hypvision.nn.linear import timed_linear

from .lorentz_resnet import LorentzClassifier
from .lorentz_transformer import (
    LorentzTransformer,
    TokenBlock,
    TokenStem,
    create_transformer,
    transformer_cfg,
)

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

    def __init__(self, dim: int, manifold: Lorentz, factory: Plain):
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


class BatchTokenNorm(TokenNorm):
    """The last norm of the released code, for comparison: the centroid of each token is that over
    the images of a batch, and every point gets the distance ``gamma`` from it.

    Logits of an image depend on the other images, and those of a batch of one image are the same
    for all images.
    """

    def forward(self, x: Tensor) -> Tensor:
        with exact(x.device):
            space = self.manifold
            points = space.from_space(precise(x))
            mean = space.centroid(points.transpose(0, 1))
            v = space.transp0back(mean, space.logmap(mean, points))
            size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
            beta = space.from_space(precise(self.beta))
            there = space.transp0(beta, v * (self.gamma / (size + 1e-5)))
            return space.expmap(beta, there)[..., 1:].to(x.dtype)


NORMS = {"tokens": TokenNorm, "official": BatchTokenNorm}


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

    def __init__(self, dim: int, heads: int, manifold: Lorentz, drop: float, factory: Plain):
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


class CentroidAttention(Attention):
    """The same with centroids of the values, the paper's other aggregation."""

    def forward(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        parts = self.qkv(x).permute(2, 0, 3, 1, 4)
        # A mean of near points is rounded to no point in half precision.
        with exact(x.device):
            query, key, value = with_time(precise(parts), c, negative=True).unbind()
            query = divided(query, self.temperature.to(query.dtype))
            mean = F.scaled_dot_product_attention(query, key, value, scale=2 * self.scale)
            points = to_centroids(mean, c)[..., 1:].to(x.dtype)
        out: Tensor = self.o(points.transpose(1, 2).flatten(2))
        return out.flatten(2)


AGGREGATIONS = {"exp": Attention, "centroid": CentroidAttention}


def along(x: Tensor, function: Callable[[Tensor], Tensor], c: float | Tensor) -> Tensor:
    """Return the vectors ``(..., n)`` with the lengths ``function(sqrt(c) |x|) / sqrt(c)``, at
    least float32."""
    ray, size = heading(precise(x))
    root = c**0.5
    return ray * times(function(times(size, root)), 1 / root)


for _layer in (Attention, CentroidAttention, TimedLinear, TokenNorm, BatchTokenNorm):
    register_notrace_module(_layer)


class Block(TokenBlock):
    """Block of a transformer on space parts ``(B, n, N)``; connections add space parts."""

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int,
        manifold: Lorentz,
        drop: float,
        drop_path: float,
        aggregation: str,
        factory: Plain,
    ):
        super().__init__()
        self.norm1 = TokenNorm(dim, manifold, factory)
        self.attn = AGGREGATIONS[aggregation](dim, heads, manifold, drop, factory)
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


class PatchEmbed(TokenStem):
    """Layer from images to tokens ``(B, n, 1 + h w)``: a linear layer of each patch, the class
    token in front, and positions, which are added to the space parts."""

    class_token: nn.Parameter

    def __init__(
        self,
        in_chans: int,
        dim: int,
        patch: int,
        grid: tuple[int, int],
        manifold: Lorentz,
        factory: Plain,
    ):
        super().__init__(manifold)
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


class HexFormer(LorentzTransformer):
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
        aggregation: of the values in attention: ``"exp"``, the mean of their logarithms at the
            origin, as published; ``"centroid"``, their centroid.
        final_norm: ``"tokens"``, a norm over the tokens of an image; ``"official"``, one over the
            images of a batch, see :class:`BatchTokenNorm`.
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
    undecayed = ("pos_embed", "class_token", "temperature", "beta", "gamma")

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        classifier: str = "lorentz",
        aggregation: str = "exp",
        final_norm: str = "tokens",
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
        one_of(HEADS, classifier=classifier)
        one_of(NORMS, final_norm=final_norm)
        one_of(AGGREGATIONS, aggregation=aggregation)
        super().__init__(
            img_size,
            patch_size,
            in_chans,
            embed_dim,
            depth,
            num_heads,
            Lorentz(curvature).to(device),
            drop_rate,
            proj_drop_rate,
            drop_path_rate,
        )
        factory: Plain = {"device": device, "dtype": dtype}
        self.head_class = HEADS[classifier]
        self.stem = PatchEmbed(in_chans, embed_dim, patch_size, self.grid, self.manifold, factory)
        rates: list[Any] = list(calculate_drop_path_rates(drop_path_rate, depth))
        blocks = (
            Block(
                embed_dim,
                num_heads,
                hidden_dim,
                self.manifold,
                proj_drop_rate,
                rate,
                aggregation,
                factory,
            )
            for rate in rates
        )
        norm = NORMS[final_norm](embed_dim, self.manifold, factory)
        self._finish(blocks, norm, global_pool, num_classes)
        self.init_weights()

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

    def _normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out


# Checkpoints of the released code


def is_official(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of the released HexFormer."""
    return "encoder.embed.cls_token" in state_dict


def from_official(state_dict: Weights, model: HexFormer) -> StateDict:
    """Return the state dict of a :class:`HexFormer` for that of the released code. Points lose
    their time, and linear layers keep its column by itself.

    Raises:
        HypvisionError: a weight is unknown or missing, or a curvature is not that of the model.
    """
    left = dict(state_dict)
    for name in state_dict:
        if name.endswith((".k", ".c")):
            _check_curvature(name, 1 / float(left.pop(name)), model)
        elif name.endswith(".scale"):
            del left[name]  # a constant
    out: StateDict = {}

    def linear(place: str, *names: str) -> None:
        whole = torch.cat([left.pop(f"{name}.weight.weight") for name in names])
        out[f"{place}.weight"] = whole[:, 1:].contiguous()
        out[f"{place}.time_weight"] = whole[:, 0].contiguous()

    def norm(place: str, name: str) -> None:
        out[f"{place}.beta"] = left.pop(f"{name}.beta").reshape(-1)[1:].contiguous()
        out[f"{place}.gamma"] = left.pop(f"{name}.gamma").reshape(1)

    with explaining(
        lambda error: f"The checkpoint of HexFormer lacks the weight {error}. Take an intact file.",
        KeyError,
    ):
        for number in range(len(model.stages)):
            place = f"stages.{number}"
            name = f"encoder.encoder.{number}"
            linear(f"{place}.attn.qkv", *(f"{name}.mha.{part}" for part in "qkv"))
            linear(f"{place}.attn.o", f"{name}.mha.o")
            linear(f"{place}.fc1", f"{name}.mlp.0")
            linear(f"{place}.fc2", f"{name}.mlp.1")
            norm(f"{place}.norm1", f"{name}.ln1")
            norm(f"{place}.norm2", f"{name}.ln2")
            temperature = left.pop(f"{name}.mha.temperature")
            out[f"{place}.attn.temperature"] = temperature.reshape(1)
        linear("stem.conv", "encoder.embed.patch_embed")
        norm("norm", "encoder.final_ln")
        out["stem.class_token"] = left.pop("encoder.embed.cls_token").reshape(1, 1, -1)[..., 1:]
        out["stem.pos_embed"] = left.pop("encoder.embed.pos_embed")
        out["head.bias"] = left.pop("decoder.a")
        out["head.weight"] = left.pop("decoder.z")
    if left:
        raise HypvisionError(unknown_name(next(iter(left)), "HexFormer"))
    # The official matrix orders its columns by position, then by channel.
    kernel = out["stem.conv.weight"].unflatten(1, (*model.stem.conv.kernel_size, -1))
    out["stem.conv.weight"] = kernel.movedim(-1, 1).contiguous()
    return out


def _check_curvature(name: str, c: float, model: HexFormer) -> None:
    own = model.manifold._value()
    if not math.isclose(c, own, rel_tol=1e-5):
        raise HypvisionError(
            f"The checkpoint has the curvature {c:g} in '{name}', the model {own:g}. Build the "
            f"model with curvature={c:g}."
        )


def checkpoint_filter_fn(state_dict: Weights, model: HexFormer) -> StateDict:
    """Return the weights in a checkpoint, ours or the released code's, by the model's names;
    positions of another square grid are resampled.

    Raises:
        HypvisionError: the positions are of another grid, which is not square.
    """
    weights = from_official(state_dict, model) if is_official(state_dict) else dict(state_dict)
    positions = weights.get("stem.pos_embed")
    if positions is not None and positions.shape != model.stem.pos_embed.shape:
        side = math.isqrt(positions.shape[1] - 1)
        if side * side != positions.shape[1] - 1:
            raise HypvisionError(
                f"The checkpoint has positions of {positions.shape[1] - 1} patches, which are no "
                "square grid, and does not say which grid. Build the model with the img_size of "
                "its training."
            )
        weights["stem.pos_embed"] = resampled(positions, model.stem.grid, (side, side))
    return weights


# Registration in timm


_cfg = partial(
    transformer_cfg,
    paper_name="HexFormer: Hyperbolic Vision Transformer with Exponential Map Aggregation",
    paper_ids="arXiv:2601.19849",
)

default_cfgs = generate_default_cfgs(
    {
        "hexformer_tiny.untrained": _cfg(),
        "hexformer_small.untrained": _cfg(),
        "hexformer_base.untrained": _cfg(),
    }
)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_transformer(HexFormer, checkpoint_filter_fn, variant, pretrained, kwargs)


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
