"""Vision transformer on the hyperboloid (LViT).

Paper: "HyperCore: The Core Framework for Building Hyperbolic Foundation Models with Comprehensive
Modules", He, Yang, Ying (arXiv 2504.08912). With the default ``skip`` and ``residual_scale`` the
network computes what the module of that library does, whose checkpoints load
(:func:`checkpoint_filter_fn`). It has one curvature for all blocks, as published, and on request
others for the stem and for what follows the blocks; space parts pass unchanged from one to the
next.

Feature maps are the space parts of points, one point per patch: ``(B, C, h, w)``. The time is
computed where a formula needs it. An image enters as space parts. With a class token, which the
published network has not, patches follow it in a row: ``(B, C, 1 + h w)``. The feature maps that
the network returns (``features_only=True``, ``forward_intermediates``) are tangent vectors at the
origin, without that token.

Position embeddings are stored as the space parts of points, in a plain parameter, so that every
optimiser keeps them on the hyperboloid. The published code keeps the points themselves and moves
them by Riemannian Adam.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, calculate_drop_path_rates
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from torch import Tensor, nn
from torch.types import Device

from hypvision.checkpoints.match import unknown_name
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.geometry import Lorentz
from hypvision.io import ArgumentError, HypvisionError, Plain, more_than, one_of
from hypvision.nn import (
    LorentzAttention,
    LorentzConv2d,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzResidual,
)

from .lorentz_transformer import (
    LorentzTransformer,
    TokenBlock,
    TokenStem,
    create_transformer,
    transformer_cfg,
)

for _layer in (LorentzAttention, LorentzLinear):
    register_notrace_module(_layer)


class Block(TokenBlock):
    """Block of a transformer on maps of space parts ``(B, C, h, w)``: attention and an MLP of two
    linear layers, each with a residual connection.

    Args:
        dim: space dimension of the tokens.
        heads, head_dim: number of heads of the attention, and their space dimension.
        hidden: space dimension between the linear layers.
        manifold: the hyperboloid of the points.
        normed_skip: whether the first connection carries the normalised tokens, as published, or
            those before the norm, as in other transformers.
        scale: factor of the space parts after each connection.
        drop: dropout of space parts, after the linear layers.
        drop_path: rate of stochastic depth, the share of images for which a branch is left out: its
            weight in the connection is 0. The other images are not scaled up, because points cannot
            be.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        hidden: int,
        manifold: Lorentz,
        normed_skip: bool,
        scale: float,
        drop: float,
        drop_path: float,
        factory: Plain,
    ):
        super().__init__()
        self.normed_skip = normed_skip
        self.norm1 = LorentzLayerNorm(dim, **factory)
        self.attn = LorentzAttention(
            dim,
            heads,
            manifold,
            scale=math.sqrt(heads * (head_dim + 1)),
            head_dim=head_dim,
            join="points",
            init="torch",
            **factory,
        )
        self.add1 = LorentzResidual(manifold, "average", scale, **factory)
        self.norm2 = LorentzLayerNorm(dim, **factory)
        self.fc1 = LorentzLinear(dim, hidden, manifold, init="xavier", **factory)
        self.act = nn.GELU()
        self.fc2 = LorentzLinear(hidden, dim, manifold, init="xavier", **factory)
        self.drop = nn.Dropout(drop)
        self.drop_path = DropPath(drop_path, scale_by_keep=False)
        self.add2 = LorentzResidual(manifold, "average", scale, **factory)

    def _tokens(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        skip = normed if self.normed_skip else x
        x = self.add1(skip, self.attn(normed), self._kept(x))
        hidden = self.drop(self.act(self.fc1(self.norm2(x))))
        out: Tensor = self.add2(x, self.drop(self.fc2(hidden)), self._kept(x))
        return out

    def _kept(self, x: Tensor) -> Tensor | None:
        """Return for each image of tokens ``(B, N, n)`` whether a branch counts, 1 or 0
        ``(B, 1, 1)``; None if all do."""
        if not self.training or not self.drop_path.drop_prob:
            return None
        kept: Tensor = self.drop_path(x.new_ones(len(x), 1, 1))
        return kept


class PatchEmbed(TokenStem):
    """Layer from the patches of images to space parts ``(B, C, h, w)``, to which positions are
    added by a residual connection; with a class token to ``(B, C, 1 + h w)``."""

    def __init__(
        self,
        in_chans: int,
        dim: int,
        patch: int,
        grid: tuple[int, int],
        manifold: Lorentz,
        class_token: bool,
        factory: Plain,
    ):
        super().__init__(manifold)
        self.conv = LorentzConv2d(in_chans, dim, patch, manifold, stride=patch, **factory)
        self.pos_embed = nn.Parameter(torch.empty(1, dim, *grid, **factory))
        self.add = LorentzResidual(manifold, "average", dim=1, **factory)
        self.class_token = nn.Parameter(torch.empty(1, dim, 1, **factory)) if class_token else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        positions = resample_positions(self.pos_embed, x.shape[2:], self.manifold)
        out: Tensor = self.add(x, positions.to(x.dtype).expand_as(x))
        if self.class_token is not None:
            token = self.class_token.to(out.dtype).expand(out.shape[0], -1, -1)
            out = torch.cat([token, out.flatten(2)], 2)
        return out


register_notrace_module(PatchEmbed)


def resample_positions(space: Tensor, size: torch.Size, manifold: Lorentz) -> Tensor:
    """Return positions ``(1, C, h, w)`` for a grid of the given size: their logarithms at the
    origin are resized bicubically.

    Positions of that size are returned unchanged, unless an exported program is made, whose sizes
    are not known yet.
    """
    if all(isinstance(side, int) for side in size) and space.shape[2:] == size:
        return space
    points = manifold.from_space(space.float().movedim(1, -1))
    tangents = manifold.logmap0(points).movedim(-1, 1)
    resized = F.interpolate(tangents, size=list(size), mode="bicubic", antialias=True)
    return manifold.expmap0(resized.movedim(1, -1))[..., 1:].movedim(-1, 1).to(space.dtype)


class LorentzViT(LorentzTransformer):
    """Vision transformer on the hyperboloid.

    Args:
        img_size: side of the images, or height and width, for which positions are learned; images
            of other sizes get resampled positions.
        patch_size: side of the patches, in pixels.
        in_chans: input channels.
        num_classes: classes of the head, at least 0; 0 for none.
        global_pool: ``"avg"``, the centroid of the tokens, ``"token"`` for the class token, or
            ``""`` for none.
        class_token: whether a learned point, a token without a patch, goes through the blocks, too.
        embed_dim: space dimension of the tokens.
        depth: number of blocks.
        num_heads: number of heads of the attention.
        head_dim: space dimension of a head; None: ``embed_dim / num_heads``.
        hidden_dim: space dimension inside the MLP of a block; None: ``4 * embed_dim``.
        skip: what the first connection of a block carries: ``"normed"``, the normalised tokens, as
            published; ``"prenorm"``, the tokens before the norm.
        residual_scale: factor of the space parts after each connection of a block; 27.5 as
            published.
        curvature: initial ``c`` of all points; or three, of the stem, of the blocks and of the
            pooled point and the classifier.
        learn_curvature: whether the curvature is learned, or all three are.
        bounds: a learned curvature stays between these multiples of its initial value.
        drop_rate: rate of dropout before the head.
        proj_drop_rate: rate of dropout of the space parts after the linear layers of blocks.
        drop_path_rate: rate of stochastic depth.

    Raises:
        ValueError: an argument has an unknown value, or the image is no whole number of patches.
    """

    stem: PatchEmbed
    undecayed = (
        "pos_embed",
        "class_token",
        "attn.scale",
        "add.weight",
        "add1.weight",
        "add2.weight",
        "log_c",
    )

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        class_token: bool = False,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        head_dim: int | None = None,
        hidden_dim: int | None = None,
        skip: str = "normed",
        residual_scale: float = 27.5,
        curvature: float | Sequence[float] = 1.0,
        learn_curvature: bool = False,
        bounds: tuple[float, float] = (0.1, 20.0),
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        one_of(("normed", "prenorm"), skip=skip)
        more_than(0, residual_scale=residual_scale)
        factory: Plain = {"device": device, "dtype": dtype}
        outside, inside, last = _spaces(curvature, learn_curvature, bounds, factory)
        super().__init__(
            img_size,
            patch_size,
            in_chans,
            embed_dim,
            depth,
            num_heads,
            last,
            drop_rate,
            proj_drop_rate,
            drop_path_rate,
        )
        self.stem = PatchEmbed(
            in_chans, embed_dim, patch_size, self.grid, outside, class_token, factory
        )
        rates: list[Any] = list(calculate_drop_path_rates(drop_path_rate, depth))
        blocks = (
            Block(
                embed_dim,
                num_heads,
                head_dim or embed_dim // num_heads,
                hidden_dim or 4 * embed_dim,
                inside,
                skip == "normed",
                residual_scale,
                proj_drop_rate,
                rate,
                factory,
            )
            for rate in rates
        )
        # As published, no norm follows the last block.
        self._finish(blocks, nn.Identity(), global_pool, num_classes)
        self.init_weights()

    @property
    def block_space(self) -> Lorentz:
        """The hyperboloid of the points inside the blocks."""
        block: Any = self.stages[0]
        space: Lorentz = block.attn.manifold
        return space

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise positions, and the class token, at the distance 1 from the origin, as
        published; layers initialise themselves."""
        for space in (self.stem.pos_embed, self.stem.class_token):
            if space is not None:
                directions = F.normalize(torch.randn_like(space.movedim(1, -1)), dim=-1)
                points = self.stem.manifold.expmap0(directions.float())
                space.copy_(points[..., 1:].movedim(-1, 1))


def _spaces(
    curvature: float | Sequence[float], learn: bool, bounds: tuple[float, float], factory: Plain
) -> list[Lorentz]:
    """Return the hyperboloids of the stem, of the blocks and of the head: one and the same for one
    curvature."""
    several: list[Any] = list(curvature) if isinstance(curvature, (list, tuple)) else [curvature]
    if len(several) not in (1, 3):
        raise ArgumentError(
            "curvature must be one number, or three: of the stem, the blocks and the head; got "
            f"{curvature}."
        )
    made = [Lorentz(c, learn, bounds).to(**factory) for c in several]
    return made * (3 // len(made))


# Checkpoints of HyperCore

_LINEAR = {
    "attention.Wq": "attn.query",
    "attention.Wk": "attn.key",
    "attention.Wv": "attn.value",
    "mlp.dense_1.linear": "fc1",
    "mlp.dense_2.linear": "fc2",
}
_WHOLE = {
    "attention.scale": "attn.scale",
    "attention.final_linear.weight": "attn.out.weight",
    "attention.final_linear.bias": "attn.out.bias",
    "layernorm_1.layer.weight": "norm1.weight",
    "layernorm_1.layer.bias": "norm1.bias",
    "layernorm_2.layer.weight": "norm2.weight",
    "layernorm_2.layer.bias": "norm2.bias",
    "residual_1.w_y": "add1.weight",
    "residual_2.w_y": "add2.weight",
}


def is_official(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of HyperCore's LViT."""
    return "add_pos.w_y" in state_dict and "pe" in state_dict


def from_official(state_dict: Weights, model: LorentzViT) -> StateDict:
    """Return the state dict of a :class:`LorentzViT` for that of HyperCore's LViT.

    Raises:
        HypvisionError: a weight is unknown, or a curvature is not that of the model.
    """
    # These of the model are not in the official files; curvatures are checked below.
    kept = ("log_scale", "log_c")
    out = {key: value for key, value in model.state_dict().items() if key.endswith(kept)}
    for name, value in state_dict.items():
        if name.endswith((".k", ".c", "attention.bias")):
            continue  # copies of the curvatures, and a constant that the softmax ignores
        found = _block_weight(name, value) or _outer_weight(name, value, model)
        if found is None:
            raise HypvisionError(unknown_name(name, "HyperCore LViT"))
        out |= found
    _check_curvatures(state_dict, model)
    return out


def _block_weight(name: str, value: Tensor) -> StateDict | None:
    match = re.fullmatch(r"encoder\.blocks\.(\d+)\.(.+)", name)
    if match is None:
        return None
    place = f"stages.{match[1]}"
    if match[2] in _WHOLE:
        own = _WHOLE[match[2]]
        return {f"{place}.{own}": value.reshape(()) if own.startswith("add") else value}
    layer, _, kind = match[2].rpartition(".")
    if layer not in _LINEAR:
        return None
    layer = f"{place}.{_LINEAR[layer]}"
    if kind == "bias":
        return {f"{layer}.bias": value}
    return {f"{layer}.weight": value[:, 1:].clone(), f"{layer}.time_weight": value[:, 0].clone()}


def _outer_weight(name: str, value: Tensor, model: LorentzViT) -> StateDict | None:
    kernel = "patch_embedding.projection.linearized_kernel.linear"
    if name == f"{kernel}.weight":
        conv = model.stem.conv
        # The official matrix orders its columns by position, then by channel.
        by_position = value[:, 1:].reshape(len(value), *conv.kernel_size, -1)
        return {
            "stem.conv.weight": by_position.movedim(-1, 1).contiguous(),
            "stem.conv.time_weight": value[:, 0].clone(),
        }
    if name == "pe":
        side = math.isqrt(value.shape[1])
        grid = value[..., 1:].transpose(1, 2).unflatten(2, (side, -1))
        return {"stem.pos_embed": grid.contiguous()}
    if name == "add_pos.w_y":
        return {"stem.add.weight": value.reshape(())}
    renamed = {
        f"{kernel}.bias": "stem.conv.bias",
        "classifier.a": "head.bias",
        "classifier.z": "head.weight",
    }
    return {renamed[name]: value} if name in renamed else None


def _check_curvatures(state_dict: Weights, model: LorentzViT) -> None:
    """Every module of HyperCore repeats the curvatures that it reads or writes: those of the stem
    and of the classifier have one, a block may name all."""
    own = [space._value() for space in (model.stem.manifold, model.block_space, model.manifold)]
    places = {"patch_embedding": own[:1], "add_pos": own[:1], "classifier": own[2:]}
    for name, value in state_dict.items():
        if not name.endswith((".k", ".c")):
            continue
        c = 1 / float(value)  # HyperCore's k and c both are 1 / c in our terms
        known = places.get(name.partition(".")[0], own)
        if not any(math.isclose(c, other, rel_tol=1e-5) for other in known):
            raise HypvisionError(
                f"The checkpoint has the curvature {c:g} in '{name}', the model "
                f"{', '.join(f'{other:g}' for other in dict.fromkeys(own))}. Build the model with "
                f"curvature={c:g}, or with three curvatures: of the stem, the blocks and the head."
            )


def checkpoint_filter_fn(state_dict: Weights, model: LorentzViT) -> StateDict:
    """Return the weights in a checkpoint, ours or HyperCore's, by the model's names; positions of
    another grid are resampled."""
    weights = from_official(state_dict, model) if is_official(state_dict) else dict(state_dict)
    positions = weights.get("stem.pos_embed")
    own = model.stem.pos_embed
    if positions is not None and positions.shape[1] == own.shape[1]:
        space = model.stem.manifold
        weights["stem.pos_embed"] = resample_positions(positions, own.shape[2:], space)
    return weights


# Registration in timm


_cfg = partial(
    transformer_cfg,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    paper_name="HyperCore: The Core Framework for Building Hyperbolic Foundation Models",
    paper_ids="arXiv:2504.08912",
    origin_url="https://github.com/Graph-and-Geometric-Learning/HyperCore",
)

default_cfgs = generate_default_cfgs(
    {
        "lvit_tiny.untrained": _cfg(),
        "lvit_small.untrained": _cfg(),
        "lvit_base.untrained": _cfg(),
        "lvit_base_hypercore.untrained": _cfg(),
    }
)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    return create_transformer(LorentzViT, checkpoint_filter_fn, variant, pretrained, kwargs)


@register_model
def lvit_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return an LViT with the sizes of ViT-Ti/16: 192 space dimensions, 3 heads."""
    args = dict(embed_dim=192, num_heads=3)
    return _create("lvit_tiny", pretrained, **dict(args, **kwargs))


@register_model
def lvit_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return an LViT with the sizes of ViT-S/16: 384 space dimensions, 6 heads."""
    args = dict(embed_dim=384, num_heads=6)
    return _create("lvit_small", pretrained, **dict(args, **kwargs))


@register_model
def lvit_base(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return an LViT with the sizes of ViT-B/16: 768 space dimensions, 12 heads."""
    args = dict(embed_dim=768, num_heads=12)
    return _create("lvit_base", pretrained, **dict(args, **kwargs))


@register_model
def lvit_base_hypercore(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return an LViT with the sizes of HyperCore's module, whose widths count the time: 88.9 M
    parameters."""
    args = dict(embed_dim=779, num_heads=12, head_dim=64, hidden_dim=3120, proj_drop_rate=0.1)
    return _create("lvit_base_hypercore", pretrained, **dict(args, **kwargs))
