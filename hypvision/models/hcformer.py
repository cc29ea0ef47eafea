"""HCFormer: a backbone in which every token-mixing step is an explicit soft clustering.

Paper: "Hyperbolic Hierarchical Clustering for Visual Representation Learning", Wei, Chen, Weng,
Guo, Wang, Wang (ECCV 2026). Official code: weijianan1/HCFormer; it builds on Context Cluster (Ma et
al., ICLR 2023). The converter (:mod:`hypvision.models.hcformer_checkpoint`) maps official
checkpoints to this implementation and back, and the outputs agree to float32 round-off.

Maps are channels-last inside the network (``(B, H, W, C)`` in memory), so that projections and MLPs
are plain matrix products; every public output is NCHW. Any input of at least 32 x 32 pixels works,
also rectangular ones, and the size may change from call to call.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import (
    GELU,
    ConvNormAct,
    DropPath,
    SelectAdaptivePool2d,
    calculate_drop_path_rates,
    get_device_dtype,
    trunc_normal_,
)
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from timm.models._input import update_model_args
from timm.models._manipulate import checkpoint
from timm.models.resnet import BasicBlock
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry.numerics import Function
from hypvision.io import ArgumentError, Plain, at_least, depths, more_than, one_of
from hypvision.nn import ClusterAssignment, ClusterMixer
from hypvision.nn.functional import add_scaled
from hypvision.nn.linear import SharedLinear

from .base import (
    COMMON_CFG,
    FeatureMaps,
    StagedModel,
    build_model,
    check_pool,
    check_sizes,
    with_zoo,
)
from .hcformer_checkpoint import checkpoint_filter_fn


class _GeluLinear(Function):
    """Compute ``linear(gelu(h), weight, bias)`` and keep only ``h``; the backward recomputes
    ``gelu(h)``.

    The hidden maps ``h`` are the largest tensors of the network; a training step keeps half as much
    of them in this way.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.gelu(h), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        h, weight, bias = inputs
        ctx.save_for_backward(h, weight)
        ctx.bias_dtype = bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        dtype = grad.dtype  # under autocast the weight has a wider dtype than the maps
        rows = grad.flatten(0, -2)
        grad_weight = torch.mm(rows.t(), F.gelu(h).to(dtype).flatten(0, -2)).to(weight.dtype)
        grad_gelu = torch.mm(rows, weight.to(dtype)).to(h.dtype).reshape(h.shape)
        return (
            torch.ops.aten.gelu_backward(grad_gelu, h),
            grad_weight,
            rows.sum(0).to(ctx.bias_dtype),
        )


class StageAssignments(NamedTuple):
    """The clusters of one block: the numbers of its stage and of the block, and its
    :class:`~hypvision.nn.ClusterAssignment`."""

    stage: int
    block: int
    assignment: ClusterAssignment


class GroupNorm1(nn.GroupNorm):
    """GroupNorm with one group on channels-last maps ``(B, H, W, C)``."""

    def __init__(self, dim: int, device: Device = None, dtype: torch.dtype | None = None):
        super().__init__(1, dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        # Each image is normalised as one contiguous row, because the layer-norm kernel is about
        # twice as fast as the group-norm kernel.
        shape = x.shape[1:]
        return F.layer_norm(x, shape, self.weight.expand(shape), self.bias.expand(shape), self.eps)


class MapNorm(GroupNorm1):
    """GroupNorm with one group on channels-last maps ``(B, C, H, W)``, as the stages return them.

    ``nn.GroupNorm`` itself would compute the same, but in PyTorch 2.11 on CPUs it crashes in the
    backward if such an input needs no gradient, as behind frozen stages.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them, on the last dimension."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        drop: float = 0.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, device=device, dtype=dtype)
        self.fc2 = SharedLinear(hidden, dim, device=device, dtype=dtype)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        weight = self.fc2.weight
        bias = self.fc2.bias
        dropping = self.training and self.drop.p > 0
        out: Tensor
        # A compiler recomputes activations by itself.
        if torch.is_grad_enabled() and not dropping and not torch.compiler.is_compiling():
            out = _GeluLinear.apply(x, weight, bias)
        elif dropping:
            out = self.drop(F.linear(self.drop(F.gelu(x)), weight, bias))
        else:
            out = F.linear(F.gelu(x), weight, bias)
        return out


class LocalConv(nn.Module):
    """Depthwise 3x3 convolution whose result is added to the map ``(B, H, W, C)``; its weights
    start at 0."""

    def __init__(self, dim: int, device: Device = None, dtype: torch.dtype | None = None):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        local: Tensor = self.conv(x.permute(0, 3, 1, 2))
        return x + local.permute(0, 2, 3, 1)


class HCFormerBlock(nn.Module):
    """Pre-norm residual block on maps ``(B, H, W, C)``: the clustering mixer, then an MLP."""

    def __init__(
        self,
        dim: int,
        mlp_ratio: float,
        drop: float,
        drop_path: float,
        layer_scale: tuple[float, float],
        mixer: Plain,
        local_conv: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        self.local = LocalConv(dim, **factory) if local_conv else nn.Identity()
        self.norm1 = GroupNorm1(dim, **factory)
        self.mixer = ClusterMixer(dim, **mixer, **factory)
        self.layer_scale1 = nn.Parameter(torch.full((dim,), float(layer_scale[0]), **factory))
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = GroupNorm1(dim, **factory)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop, **factory)
        self.layer_scale2 = nn.Parameter(torch.full((dim,), float(layer_scale[1]), **factory))
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.local(x)
        x = add_scaled(x, self.drop_path1(self.mixer(self.norm1(x))), self.layer_scale1)
        return add_scaled(x, self.drop_path2(self.mlp(self.norm2(x))), self.layer_scale2)


# torch.fx cannot trace Python control flow that depends on sizes or gradients, nor the region
# without autocast, so a block stays one node; so do its parts in other networks.
for _layer in (ClusterMixer, Mlp, HCFormerBlock):
    register_notrace_module(_layer)


class HCFormerStage(nn.Module):
    """The blocks of one resolution, after an optional down-sampling convolution; maps
    ``(B, C, H, W)`` in and out."""

    def __init__(
        self,
        dim_in: int,
        dim: int,
        downsample: bool,
        blocks: list[HCFormerBlock],
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.grad_checkpointing = False
        self.downsample = (
            nn.Conv2d(dim_in, dim, 3, stride=2, padding=1, device=device, dtype=dtype)
            if downsample
            else nn.Identity()
        )
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channels_last(x)
        for block in self.blocks:
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
        return x.permute(0, 3, 1, 2)

    def channels_last(self, x: Tensor) -> Tensor:
        """Return the map ``(B, H, W, C)`` that enters the first block, for the map ``x``
        ``(B, C, H, W)`` of the stage before."""
        smaller: Tensor = self.downsample(x)
        return smaller.permute(0, 2, 3, 1).contiguous()


class HCFormer(StagedModel):
    """HCFormer: an image classifier and backbone of four stages of clustering blocks.

    Args:
        in_chans: input channels.
        num_classes: classes of the linear head; 0 for none.
        global_pool: pooling before the head, ``"avg"``, ``"max"``, ``"avgmax"``, or ``""`` for
            none.
        layers, dims, heads, mlp_ratios: numbers of blocks, channels and heads, and MLP expansion,
            of each stage.
        head_dim: channels of a head of the mixer, the same in every stage.
        fold, prop, win: for each stage the numbers of windows per side of the map, of patch-level
            centres per side of a window, and of window-level centres per side of the map.
        window_level: for each stage, whether it has the Lorentzian window level.
        img_size: nominal input side, which sets the size of the position biases but does not limit
            the sizes that the model accepts.
        patch_size: kernel and stride of the stem (4 as published; 2 or 1 for small images such as
            CIFAR).
        stem: ``"patch"``: one convolution of kernel ``patch_size``, as published. ``"conv"``: two
            or more convolutions of kernel 3, with GroupNorm and GELU between them, whose strides
            multiply to ``patch_size`` (a power of two). ``"residual"``: the same number of
            convolutions, each with a BatchNorm, and after each but the first a residual block of
            two more, as in a ResNet; BatchNorm, which the network has nowhere else, does not suit
            batches of one or two images.
        local_conv: whether a depthwise 3x3 convolution is added to the map before each block (not
            in the paper).
        curvature, pad, lift, mixer_norm, alpha, window_alpha, center, locality: see
            :class:`~hypvision.nn.ClusterMixer`.
        patch_geometry, window_geometry, position_bias: see :class:`~hypvision.nn.ClusterMixer`.
        shift_windows: whether every second block of a stage with windows cuts them shifted by half
            their side; together with ``window_level=(False, False, False, False)`` this is the
            paper's ablation of its window level.
        layer_scale: initial value of the per-channel layer scales, or two, the first for mixers and
            the second for MLPs.
        drop_rate, proj_drop_rate, drop_path_rate: rates of dropout before the head, of dropout in
            the MLPs, and of stochastic depth.
        feature_norms: whether each stage is followed by a GroupNorm that is applied to the
            intermediate maps (the paper's dense mode; on by default with ``features_only=True``).
    """

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        layers: tuple[int, ...] = (2, 2, 6, 2),
        dims: tuple[int, ...] = (64, 128, 320, 512),
        heads: tuple[int, ...] = (4, 4, 8, 8),
        head_dim: int = 32,
        mlp_ratios: tuple[float, ...] = (8, 8, 4, 4),
        fold: tuple[int, ...] = (7, 7, 1, 1),
        prop: tuple[int, ...] = (4, 2, 7, 4),
        win: tuple[int, ...] = (4, 4, 1, 1),
        window_level: tuple[bool, ...] = (True, True, True, False),
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        stem: str = "patch",
        local_conv: bool = False,
        curvature: float = 1.0,
        pad: str = "always",
        lift: str = "ambient",
        mixer_norm: bool = False,
        alpha: float = 1.0,
        window_alpha: float = 1.0,
        center: bool = False,
        locality: float = 0.0,
        patch_geometry: str = "euclidean",
        window_geometry: str = "hyperbolic",
        position_bias: bool = True,
        shift_windows: bool = False,
        layer_scale: float | tuple[float, float] = 1e-5,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        feature_norms: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        factory: Plain = {"device": device, "dtype": dtype}
        mixer_arguments = dict(fold=fold, prop=prop, win=win, window_level=window_level)
        _check_stages(
            curvature,
            layers=layers,
            dims=dims,
            heads=heads,
            mlp_ratios=mlp_ratios,
            **mixer_arguments,
        )
        at_least(1, integer=True, patch_size=patch_size, head_dim=head_dim)
        check_sizes(
            in_chans,
            drop_rate=drop_rate,
            proj_drop_rate=proj_drop_rate,
            drop_path_rate=drop_path_rate,
        )
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.patch_size = patch_size
        self.stem = _stem(stem, in_chans, dims[0], patch_size, factory)
        rates: Iterator[Any] = iter(calculate_drop_path_rates(drop_path_rate, sum(layers)))
        stages = []
        self.feature_info = []
        nominal = _nominal_side(img_size, patch_size) // patch_size
        for i, depth in enumerate(layers):
            mixer = dict(
                heads=heads[i], head_dim=head_dim, nominal_size=-(-nominal // 2**i),
                curvature=curvature, pad=pad, lift=lift, norm=mixer_norm, alpha=alpha,
                window_alpha=window_alpha, center=center, locality=locality,
                patch_geometry=patch_geometry, window_geometry=window_geometry,
                position_bias=position_bias,
                **{name: values[i] for name, values in mixer_arguments.items()},
            )  # fmt: skip
            options = dict(layer_scale=_pair(layer_scale), local_conv=local_conv, **factory)
            make = partial(HCFormerBlock, dims[i], mlp_ratios[i], proj_drop_rate, **options)
            blocks = []
            for j, rate in enumerate(islice(rates, depth)):
                shift = shift_windows and fold[i] > 1 and j % 2 == 1
                blocks.append(make(drop_path=rate, mixer=mixer | dict(shift=shift)))
            stages.append(HCFormerStage(dims[max(i - 1, 0)], dims[i], i > 0, blocks, **factory))
            self.feature_info.append(
                dict(num_chs=dims[i], reduction=patch_size * 2**i, module=f"stages.{i}")
            )
        self.stages = nn.ModuleList(stages)
        self.feature_norms = nn.ModuleList(
            MapNorm(dim, **factory) if feature_norms else nn.Identity() for dim in dims
        )
        self.num_features = self.head_hidden_size = dims[-1]
        self.norm = MapNorm(dims[-1], **factory)
        self.reset_classifier(num_classes, global_pool)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise linear maps from a truncated normal (std 0.02), their biases with 0, and local
        convolutions with 0.

        Other convolutions keep PyTorch's initialisation, and so do the mixers' projections, which
        are convolutions of kernel 1 as published.
        """
        convolutions = {
            id(m)
            for mixer in self.modules()
            if isinstance(mixer, ClusterMixer)
            for m in mixer.modules()
        }
        for module in self.modules():
            if isinstance(module, nn.Linear) and id(module) not in convolutions:
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, LocalConv):
                for parameter in module.parameters():
                    nn.init.zeros_(parameter)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the temperatures, which weight decay would pull to 0. Position biases
        are decayed, as published."""
        names = ("alpha", "window_alpha", "locality")
        return {
            f"{prefix}.{name}"
            for prefix, module in self.named_modules()
            if isinstance(module, ClusterMixer)
            for name in names
            if getattr(module, name) is not None
        }

    def group_matcher(self, coarse: bool = False) -> Plain:
        """Return timm's patterns of parameter groups, from the stem to the head, for layer-wise
        learning rates."""
        return dict(
            stem=r"^stem",
            blocks=r"^stages\.(\d+)"
            if coarse
            else [
                (r"^stages\.(\d+)\.downsample", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^feature_norms|^norm", (99999,)),
            ],
        )

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        at_least(0, integer=True, num_classes=num_classes)
        factory = get_device_dtype(self)
        if global_pool is not None:
            check_pool(global_pool, num_classes)
            self.global_pool = SelectAdaptivePool2d(
                pool_type=global_pool, flatten=bool(global_pool)
            )
        self.num_classes = num_classes
        self.head = (
            nn.Linear(self.num_features, num_classes, **factory)
            if num_classes > 0
            else nn.Identity()
        )
        self.global_pool.train(self.training)
        self.head.train(self.training)

    def _stage_map(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        out: Tensor = self.norm(x) if norm else self.feature_norms[stage](x)
        return out

    def _prune(self, taken: list[int], last: int, prune_norm: bool) -> None:
        if prune_norm:
            self.norm = nn.Identity()
        norms = enumerate(self.feature_norms[: last + 1])
        self.feature_norms = nn.ModuleList(
            norm if i in taken else nn.Identity() for i, norm in norms
        )

    @torch.no_grad()
    def forward_assignments(self, x: Tensor) -> list[StageAssignments]:
        """Return the soft cluster assignments of every block for images ``(B, in_chans, H, W)``,
        from the first block to the last."""
        found: list[StageAssignments] = []
        x = self.stem(x)
        stages: Iterable[Any] = self.stages
        for i, stage in enumerate(stages):
            x = stage.channels_last(x)
            for j, block in enumerate(stage.blocks):
                found.append(
                    StageAssignments(i, j, block.mixer.assignments(block.norm1(block.local(x))))
                )
                x = block(x)
            x = x.permute(0, 3, 1, 2)
        return found


def _stem(stem: str, in_chans: int, dim: int, patch_size: int, factory: Plain) -> nn.Module:
    """Return the stem, which makes an image ``(B, in_chans, H, W)`` a map that is smaller by
    ``patch_size``."""
    if stem == "patch":
        return nn.Conv2d(in_chans, dim, patch_size, stride=patch_size, **factory)
    one_of(("patch", "conv", "residual"), stem=stem)
    halvings = patch_size.bit_length() - 1
    if patch_size != 2**halvings:
        raise ValueError(
            f"stem={stem!r} halves maps, so patch_size must be a power of two, got {patch_size}."
        )
    layers: list[nn.Module] = []
    for i, stride in enumerate([1] * (2 - halvings) + [2] * halvings):
        channels = dim if i > 0 else in_chans
        if stem == "residual":
            layers.append(ConvNormAct(channels, dim, 3, stride=stride, act_layer=GELU, **factory))
            if i > 0:
                layers.append(BasicBlock(dim, dim, act_layer=GELU, **factory))
        else:
            if i > 0:
                layers += [MapNorm(dim, **factory), nn.GELU()]
            layers.append(nn.Conv2d(channels, dim, 3, stride=stride, padding=1, **factory))
    return nn.Sequential(*layers)


def _check_stages(curvature: float, **arguments: Any) -> None:
    """Check the arguments with one entry per stage: they must be tuples of the same length with
    values in range."""
    more_than(0, **{"curvature, minus the sectional curvature,": curvature})
    for name, values in arguments.items():
        if not isinstance(values, (tuple, list)) or not values:
            raise ArgumentError(f"{name} must be a tuple with one entry per stage, got {values!r}.")
        for stage, value in enumerate(values):
            if name == "mlp_ratios":
                more_than(0, **{f"{name}[{stage}]": value})
            elif name != "window_level":
                at_least(1, integer=True, **{f"{name}[{stage}]": value})
    depths(layers=arguments["layers"])
    if len({len(values) for values in arguments.values()}) != 1:
        lengths = ", ".join(f"{name}: {len(values)}" for name, values in arguments.items())
        raise ArgumentError(
            f"The per-stage arguments must have one entry per stage, got {lengths}."
        )


def _nominal_side(img_size: int | tuple[int, int], patch_size: int) -> int:
    """Return the longer side of the nominal input, after checking that it leaves a pixel in the map
    of the last stage."""
    sides = img_size if isinstance(img_size, (tuple, list)) else (img_size,)
    for side in sides:
        at_least(1, integer=True, img_size=side)
    if max(sides) < 8 * patch_size:
        raise ArgumentError(
            f"img_size must be at least 8 * patch_size = {8 * patch_size}, got {img_size}."
        )
    return max(sides)


def _pair(layer_scale: float | tuple[float, float]) -> tuple[float, float]:
    """Return the layer scales of mixers and of MLPs, from one number for both or from two."""
    scales = (
        tuple(layer_scale) if isinstance(layer_scale, (tuple, list)) else (layer_scale, layer_scale)
    )
    if len(scales) != 2:
        raise ArgumentError(
            f"layer_scale must be a number, or two (for mixers and MLPs), got {layer_scale!r}."
        )
    for scale in scales:
        at_least(0, layer_scale=scale)
    return scales[0], scales[1]


_cfg: partial[Plain] = partial(
    dict,
    COMMON_CFG,
    input_size=(3, 224, 224),
    pool_size=(7, 7),
    crop_pct=0.9,
    first_conv="stem",
    license="apache-2.0",
    paper_name="Hyperbolic Hierarchical Clustering for Visual Representation Learning",
    origin_url="https://github.com/weijianan1/HCFormer",
)


# hypvision.zoo finds the weights of a tag by the tag's name; a test compares these entries with the
# zoo's index.
default_cfgs = generate_default_cfgs(
    {
        "hcformer_nano.cifar10": _cfg(
            url="zoo:hcformer_nano.cifar10", num_classes=10, input_size=(3, 32, 32),
            pool_size=(2, 2), crop_pct=1.0, interpolation="bilinear", mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
        ),
        # The star marks the default tag: a name without a tag builds the published network.
        "hcformer_nano.untrained*": _cfg(),
        "hcformer_tiny.untrained": _cfg(),
        "hcformer_small.untrained": _cfg(),
        "hcformer_medium.untrained": _cfg(),
    }
)  # fmt: skip

# By tag, the arguments of a network for small images, which differs from the published one;
# create_model("NAME.TAG") builds it.
_TAG_ARGS: dict[str, Plain] = {
    "hcformer_nano.cifar10": dict(
        stem="conv", center=True, alpha=3.0, window_alpha=4.0, locality=2.0, pad="minimal",
        img_size=32, patch_size=2, fold=(4, 2, 1, 1), prop=(2, 2, 2, 1), win=(2, 1, 1, 1),
        mlp_ratios=(4, 4, 4, 4), layer_scale=0.1,
    )
}  # fmt: skip


def _create_hcformer(variant: str, pretrained: bool, args: Plain, kwargs: Plain) -> nn.Module:
    """Return the network of a variant; the caller's ``kwargs`` take precedence over the arguments
    of the tag and of the variant."""
    own, kwargs = with_zoo(variant, pretrained, _TAG_ARGS, kwargs)
    kwargs = {**args, **own, **kwargs}
    if kwargs.get("features_only"):
        kwargs.setdefault("feature_norms", True)
    first = {"conv": "stem.0", "residual": "stem.0.conv"}.get(kwargs.get("stem", "patch"))
    if first is not None:  # names the layer whose weights timm adapts to in_chans
        kwargs["pretrained_cfg_overlay"] = {"first_conv": first} | (
            kwargs.get("pretrained_cfg_overlay") or {}
        )
    stages = kwargs["layers"]
    # Other types than a tuple or list are reported by the constructor.
    levels = len(stages) if isinstance(stages, (tuple, list)) else 4
    maps = dict(out_indices=tuple(range(levels)), feature_cls=FeatureMaps)
    model = build_model(
        HCFormer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=maps,
        **kwargs,
    )
    update_model_args(model, **own)  # save_for_hf writes these beside the caller's arguments
    return model


@register_model
def hcformer_nano(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return HCFormer-nano: 5.3 M parameters, 0.9 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(32, 64, 196, 224), heads=(4, 4, 8, 8), head_dim=16)
    return _create_hcformer("hcformer_nano", pretrained, args, kwargs)


@register_model
def hcformer_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return HCFormer-tiny: 7.0 M parameters, 1.0 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(32, 64, 196, 320), heads=(4, 4, 8, 8), head_dim=24)
    return _create_hcformer("hcformer_tiny", pretrained, args, kwargs)


@register_model
def hcformer_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return HCFormer-small: 16.1 M parameters, 2.9 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(64, 128, 320, 512), heads=(4, 4, 8, 8), head_dim=32)
    return _create_hcformer("hcformer_small", pretrained, args, kwargs)


@register_model
def hcformer_medium(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return HCFormer-medium: 33.6 M parameters, 6.4 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(4, 4, 12, 4), dims=(64, 128, 320, 512), heads=(6, 6, 12, 12), head_dim=32)
    return _create_hcformer("hcformer_medium", pretrained, args, kwargs)
