"""HCFormer: a backbone whose every token-mixing step is an explicit soft clustering.

Paper: "Hyperbolic Hierarchical Clustering for Visual Representation Learning", Wei, Chen, Weng, Guo, Wang, Wang (ECCV
2026). Official code: weijianan1/HCFormer; it builds on Context Cluster (Ma et al., ICLR 2023). The converter
(:mod:`hypvision.models.hcformer_checkpoint`) maps official checkpoints to this implementation and back, and the outputs
agree to float32 round-off.

Maps travel channels-last inside the network (``(B, H, W, C)`` in memory), so that projections and MLPs are plain matrix
products; every public output is NCHW. Any input of at least 32 x 32 pixels works, rectangular ones too, and the size
may change from call to call.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import (
    GELU,
    ConvNormAct,
    DropPath,
    SelectAdaptivePool2d,
    calculate_drop_path_rates,
    get_device_dtype,
    trunc_normal_,
)
from timm.models import (
    generate_default_cfgs,
    register_model,
    register_notrace_module,
)
from timm.models._features import feature_take_indices
from timm.models._input import update_model_args
from timm.models._manipulate import checkpoint
from timm.models.resnet import BasicBlock
from torch import Tensor, nn

from hypvision.checkpoints.pretrained import pretrained_overlay
from hypvision.checks import at_least, more_than, one_of
from hypvision.geometry.numerics import Function
from hypvision.nn import ClusterAssignment, ClusterMixer
from hypvision.nn.linear import SharedLinear

from .base import FeatureMaps, StagedModel, build_model
from .hcformer_checkpoint import checkpoint_filter_fn

__all__ = ["HCFormer", "StageAssignments"]

# Control flow on sizes and the autocast island are Python, which torch.fx cannot trace: these stay one node each.
register_notrace_module(ClusterMixer)


class _GeluLinear(Function):
    """``linear(gelu(h), weight, bias)`` that keeps ``h`` alone for backward and computes ``gelu(h)`` once more there.

    The hidden maps are the largest tensors of the network; this halves what a training step keeps of them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(F.gelu(h), weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        h, weight, bias = inputs
        ctx.save_for_backward(h, weight)
        ctx.bias_dtype = bias.dtype

    @staticmethod
    def backward(ctx, grad: Tensor):
        h, weight = ctx.saved_tensors
        dtype = grad.dtype  # under autocast the weight is wider than the maps
        rows = grad.flatten(0, -2)
        grad_weight = torch.mm(rows.t(), F.gelu(h).to(dtype).flatten(0, -2)).to(weight.dtype)
        grad_h = torch.ops.aten.gelu_backward(torch.matmul(grad, weight.to(dtype)).to(h.dtype), h)
        return grad_h, grad_weight, rows.sum(0).to(ctx.bias_dtype)


class StageAssignments(NamedTuple):
    """What one block clusters: its place in the network and its :class:`~hypvision.nn.ClusterAssignment`."""

    stage: int
    block: int
    assignment: ClusterAssignment


def _group_norm1(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """GroupNorm with one group of a map ``(B, H, W, C)``."""
    # One contiguous row an image: the layer-norm kernel is about twice as fast here as the group-norm kernel.
    x = F.layer_norm(x, [x.shape[1], x.shape[2], x.shape[3]], eps=eps)
    return torch.addcmul(bias, x, weight)


class GroupNorm1(nn.GroupNorm):
    """GroupNorm with one group on channels-last maps ``(B, H, W, C)``."""

    def __init__(self, dim: int, device=None, dtype=None):
        super().__init__(1, dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return _group_norm1(x, self.weight, self.bias, self.eps)


class MapNorm(nn.GroupNorm):
    """GroupNorm with one group on maps ``(B, C, H, W)`` that lie channels-last in memory, as the stages return them.

    ``nn.GroupNorm`` itself would do, but PyTorch 2.11 on CPUs crashes in its backward where such an input needs no
    gradient, as behind frozen stages.
    """

    def __init__(self, dim: int, device=None, dtype=None):
        super().__init__(1, dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return _group_norm1(x.permute(0, 2, 3, 1), self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class Mlp(nn.Module):
    """Linear - GELU - Linear on the last dimension; ``scale`` ``(C,)`` multiplies the output channels (layer scale)."""

    def __init__(self, dim: int, hidden: int, drop: float = 0.0, device=None, dtype=None):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, device=device, dtype=dtype)
        self.fc2 = SharedLinear(hidden, dim, device=device, dtype=dtype)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        # Scaling the small weight instead of the large output saves a pass over the map, and its copy for backward.
        x, weight, bias = self.fc1(x), self.fc2.weight * scale.unsqueeze(1), self.fc2.bias * scale
        if self._recompute():
            return _GeluLinear.apply(x, weight, bias)
        return self.drop(F.linear(self.drop(F.gelu(x)), weight, bias))

    def _recompute(self) -> bool:
        """Whether GELU is computed again in backward; compilers decide that themselves."""
        dropping = self.training and self.drop.p > 0
        return torch.is_grad_enabled() and not dropping and not torch.compiler.is_compiling()


register_notrace_module(Mlp)


class LocalConv(nn.Module):
    """Depthwise 3x3 convolution added to a map ``(B, H, W, C)``; zeros at the start, as if it were not there."""

    def __init__(self, dim: int, device=None, dtype=None):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class HCFormerBlock(nn.Module):
    """Pre-norm residual block: clustering mixer, then MLP; maps ``(B, H, W, C)``."""

    def __init__(
        self,
        dim: int,
        mlp_ratio: float,
        drop: float,
        drop_path: float,
        layer_scale: tuple[float, float],
        mixer: dict[str, Any],
        local_conv: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
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
        x = x + self.drop_path1(self.mixer(self.norm1(x), self.layer_scale1))
        return x + self.drop_path2(self.mlp(self.norm2(x), self.layer_scale2))


class HCFormerStage(nn.Module):
    """Optional down-sampling convolution and the blocks of one resolution; NCHW in and out."""

    def __init__(self, dim_in: int, dim: int, downsample: bool, blocks: list[HCFormerBlock], device=None, dtype=None):
        super().__init__()
        self.grad_checkpointing = False
        self.downsample = (
            nn.Conv2d(dim_in, dim, 3, stride=2, padding=1, device=device, dtype=dtype) if downsample else nn.Identity()
        )
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x).permute(0, 2, 3, 1).contiguous()
        for block in self.blocks:
            if self.grad_checkpointing:
                x = checkpoint(block, x)
            else:
                x = block(x)
        return x.permute(0, 3, 1, 2)


class HCFormer(StagedModel):
    """HCFormer.

    Args:
        in_chans: input channels.
        num_classes: classes of the linear head; 0 for none.
        global_pool: pooling before the head, ``"avg"`` or ``""`` for none.
        layers, dims, heads, mlp_ratios: blocks, channels, heads and MLP expansion of the four stages.
        head_dim: channels of a head of the mixer, the same in every stage.
        fold, prop, win: windows per side, patch-level centres per side of a window, window-level centres per side of
            the map, each per stage.
        window_level: whether a stage has the Lorentzian window level.
        img_size: nominal input side; sets the size of the position biases, not the sizes that the model accepts.
        patch_size: kernel and stride of the stem (4 as published; 2 or 1 for small images such as CIFAR).
        stem: ``"patch"``, one convolution of kernel ``patch_size`` (as published); ``"conv"``, two or more of kernel
            3 with GroupNorm and GELU between, whose strides come to ``patch_size`` (a power of two); or ``"residual"``,
            as many, with BatchNorm, and after each but the first a residual block of two, as in a ResNet. It brings
            statistics of the batch into a network that has none otherwise: not for batches of one or two images.
        local_conv: a depthwise 3x3 convolution, added to the map before each block (not in the paper).
        curvature, pad, lift, mixer_norm, alpha, window_alpha, center, locality: see
            :class:`~hypvision.nn.ClusterMixer`.
        layer_scale: initial value of the per-channel layer scales; of two the first is for mixers, the second for MLPs.
        drop_rate, proj_drop_rate, drop_path_rate: dropout before the head, in the MLPs, and stochastic depth.
        feature_norms: one GroupNorm after each stage, applied to the intermediate maps (dense mode of the paper; on by
            default with ``features_only=True``).

    Raises:
        ValueError: the per-stage arguments have different lengths, or one is out of its range.
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
        layer_scale: float | tuple[float, float] = 1e-5,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        feature_norms: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        per_stage = dict(
            layers=layers, dims=dims, heads=heads, mlp_ratios=mlp_ratios, fold=fold, prop=prop, win=win,
            window_level=window_level,
        )  # fmt: skip
        _check_arguments(per_stage, dict(patch_size=patch_size, head_dim=head_dim), img_size, curvature)
        if len({len(value) for value in per_stage.values()}) != 1:
            lengths = ", ".join(f"{name}: {len(value)}" for name, value in per_stage.items())
            raise ValueError(f"The per-stage arguments must have one entry a stage, got {lengths}.")
        side = img_size if isinstance(img_size, int) else max(img_size)
        if side < 8 * patch_size:
            raise ValueError(f"img_size must be at least 8 * patch_size = {8 * patch_size}, got {img_size}.")
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.patch_size = patch_size

        self.stem = _stem(stem, in_chans, dims[0], patch_size, factory)
        scales = tuple(layer_scale) if isinstance(layer_scale, (tuple, list)) else (layer_scale, layer_scale)
        if len(scales) != 2 or not all(isinstance(s, (int, float)) and 0 <= s < float("inf") for s in scales):
            raise ValueError(f"layer_scale must be a finite number >= 0, or two (mixers, MLPs), got {layer_scale!r}.")
        rates = calculate_drop_path_rates(drop_path_rate, sum(layers))
        stages, self.feature_info, nominal = [], [], side // patch_size
        for i, depth in enumerate(layers):
            if i > 0:
                nominal = (nominal + 1) // 2
            mixer = dict(
                heads=heads[i], head_dim=head_dim, fold=fold[i], prop=prop[i], win=win[i], nominal_size=nominal,
                window_level=window_level[i], curvature=curvature, pad=pad, lift=lift, norm=mixer_norm,
                alpha=alpha, window_alpha=window_alpha, center=center, locality=locality,
            )  # fmt: skip
            first = sum(layers[:i])
            blocks = [
                HCFormerBlock(
                    dims[i], mlp_ratios[i], proj_drop_rate, rates[first + j], scales, mixer, local_conv, **factory
                )
                for j in range(depth)
            ]
            stages.append(HCFormerStage(dims[max(i - 1, 0)], dims[i], i > 0, blocks, **factory))
            self.feature_info.append(dict(num_chs=dims[i], reduction=patch_size * 2**i, module=f"stages.{i}"))
        self.stages = nn.ModuleList(stages)
        self.feature_norms = nn.ModuleList(MapNorm(dim, **factory) if feature_norms else nn.Identity() for dim in dims)

        self.num_features = self.head_hidden_size = dims[-1]
        self.norm: nn.Module = MapNorm(dims[-1], **factory)
        self.global_pool = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
        self.head = nn.Linear(dims[-1], num_classes, **factory) if num_classes > 0 else nn.Identity()
        self.init_weights()

    def init_weights(self) -> None:
        """Truncated normal (std 0.02) for linear maps, zeros for their biases; convolutions keep PyTorch's default.

        So do the mixers' projections, which are convolutions of kernel 1 as published. Local convolutions are zero.
        """
        convolutions = {id(m) for mixer in self.modules() if isinstance(mixer, ClusterMixer) for m in mixer.modules()}
        for module in self.modules():
            if isinstance(module, nn.Linear) and id(module) not in convolutions:
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, LocalConv):
                nn.init.zeros_(module.conv.weight)
                nn.init.zeros_(module.conv.bias)

    def no_weight_decay(self) -> set[str]:
        """Temperatures: zero is not their prior. Position biases are decayed, as published."""
        names = ("alpha", "window_alpha", "locality")
        return {
            f"{prefix}.{name}"
            for prefix, module in self.named_modules()
            if isinstance(module, ClusterMixer)
            for name in names
            if getattr(module, name) is not None
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's parameter groups, from the stem to the head, for layer-wise learning rates."""
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
        """Replace the head by a new one for ``num_classes`` (0: none); optionally change the pooling."""
        factory = get_device_dtype(self)
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
        self.head = nn.Linear(self.num_features, num_classes, **factory) if num_classes > 0 else nn.Identity()
        self.global_pool.train(self.training)
        self.head.train(self.training)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ):
        """Stage maps, and the final features.

        Args:
            x: images ``(B, in_chans, H, W)``.
            indices: the last n stages if int, all if None, else the stages named.
            norm: apply the final norm to the last map, where the model has no norms of its own for each stage.
            stop_early: leave out the stages after the last one asked for.
            output_fmt: ``"NCHW"`` only.
            intermediates_only: return the list alone.

        Returns:
            List of maps ``(B, C_i, H_i, W_i)``; before it, unless ``intermediates_only``, the final feature map.
        """
        assert output_fmt in ("NCHW",), "Output format must be NCHW."
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        last = len(self.stages) - 1
        intermediates: list[Tensor] = []
        x = self.stem(x)
        for i, (stage, feature_norm) in enumerate(zip(self.stages, self.feature_norms)):
            if not stop_early or i <= max_index:
                x = stage(x)
                if i in take_indices:
                    intermediates.append(self.norm(x) if norm and i == last else feature_norm(x))
        if intermediates_only:
            return intermediates
        if not stop_early or max_index == last:
            x = self.norm(x)
        return x, intermediates

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the given stages do not need; returns the indices kept."""
        take_indices, max_index = feature_take_indices(len(self.stages), indices)
        prune_end = max_index < len(self.stages) - 1
        if prune_norm or prune_end:
            self.norm = nn.Identity()
        self.stages = self.stages[: max_index + 1]
        self.feature_norms = nn.ModuleList(
            norm if i in take_indices else nn.Identity() for i, norm in enumerate(self.feature_norms[: max_index + 1])
        )
        if prune_end:
            self.num_features = self.head_hidden_size = self.feature_info[max_index]["num_chs"]
        if prune_head or prune_end:
            self.reset_classifier(0, "")
        return take_indices

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised last map ``(B, C, H/32, W/32)`` of images ``(B, in_chans, H, W)``."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits ``(B, num_classes)`` of a feature map, or the pooled features ``(B, C)``."""
        x = self.global_pool(x)
        x = F.dropout(x, p=self.drop_rate, training=self.training)
        return x if pre_logits else self.head(x)

    @torch.no_grad()
    def forward_assignments(self, x: Tensor) -> list[StageAssignments]:
        """The soft cluster assignments of every block for images ``(B, in_chans, H, W)``, from first to last."""
        found: list[StageAssignments] = []
        x = self.stem(x)
        for i, stage in enumerate(self.stages):
            x = stage.downsample(x).permute(0, 2, 3, 1).contiguous()
            for j, block in enumerate(stage.blocks):
                seen = block.norm1(block.local(x))
                found.append(StageAssignments(i, j, block.mixer.assignments(seen)))
                x = block(x)
            x = x.permute(0, 3, 1, 2)
        return found


def _stem(stem: str, in_chans: int, dim: int, patch_size: int, factory: dict[str, Any]) -> nn.Module:
    """From the image ``(B, in_chans, H, W)`` to the first map, smaller by ``patch_size``."""
    if stem == "patch":
        return nn.Conv2d(in_chans, dim, patch_size, stride=patch_size, **factory)
    one_of(("patch", "conv", "residual"), stem=stem)
    halvings = patch_size.bit_length() - 1
    if patch_size != 2**halvings:
        raise ValueError(f"stem={stem!r} makes maps smaller by a patch_size that is a power of two, got {patch_size}.")
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


def _check_arguments(
    per_stage: dict[str, Any], counts: dict[str, Any], img_size: int | tuple[int, int], curvature: float
) -> None:
    """Raise ValueError for an argument that is out of its range, before it fails somewhere inside."""
    for name, values in per_stage.items():
        if not isinstance(values, (tuple, list)) or not values:
            raise ValueError(f"{name} must be a tuple with one entry a stage, got {values!r}.")
        for stage, value in enumerate(values):
            if name == "mlp_ratios":
                more_than(0, **{f"{name}[{stage}]": value})
            elif name != "window_level":
                at_least(1, integer=True, **{f"{name}[{stage}]": value})
    at_least(1, integer=True, **counts)
    for side in img_size if isinstance(img_size, (tuple, list)) else (img_size,):
        at_least(1, integer=True, img_size=side)
    more_than(0, **{"curvature, minus the sectional curvature,": curvature})


def _cfg(url: str = "", **kwargs: Any) -> dict[str, Any]:
    return {
        "url": url,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "min_input_size": (3, 32, 32),
        "pool_size": (7, 7),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "stem",
        "classifier": "head",
        "paper_name": "Hyperbolic Hierarchical Clustering for Visual Representation Learning",
        "origin_url": "https://github.com/weijianan1/HCFormer",
        "license": "apache-2.0",
        **kwargs,
    }


# The weights of a tag lie in the zoo: hypvision.zoo finds them by their name. tests/zoo compares these with its index.
default_cfgs = generate_default_cfgs(
    {
        "hcformer_nano.cifar10": _cfg(
            url="zoo:hcformer_nano.cifar10",
            num_classes=10,
            input_size=(3, 32, 32),
            pool_size=(1, 1),
            crop_pct=1.0,
            interpolation="bilinear",
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
        ),
        "hcformer_nano.shapes": _cfg(
            url="zoo:hcformer_nano.shapes",
            num_classes=16,
            input_size=(3, 64, 64),
            pool_size=(2, 2),
            crop_pct=1.0,
            interpolation="bilinear",
        ),
        # The star keeps the published network what a name without a tag stands for.
        "hcformer_nano.untrained*": _cfg(),
        "hcformer_tiny.untrained": _cfg(),
        "hcformer_small.untrained": _cfg(),
        "hcformer_medium.untrained": _cfg(),
    }
)

# Small images need another network than the published one; create_model("NAME.TAG") builds it.
_TAG_ARGS: dict[str, dict[str, Any]] = {
    "hcformer_nano.cifar10": dict(
        img_size=32,
        patch_size=2,
        stem="conv",
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        mlp_ratios=(4, 4, 4, 4),
        pad="minimal",
        layer_scale=0.1,
    ),
    "hcformer_nano.shapes": dict(
        img_size=64,
        layers=(1, 1, 2, 1),
        mlp_ratios=(4, 4, 4, 4),
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        pad="minimal",
        stem="conv",
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        layer_scale=0.3,
    ),
}


def _create_hcformer(variant: str, pretrained: bool, args: dict[str, Any], **kwargs: Any) -> HCFormer:
    """``kwargs`` are the caller's and come before what the tag and the variant say."""
    if pretrained:
        overlay = kwargs.pop("pretrained_cfg_overlay", None)
        kwargs["pretrained_cfg_overlay"] = pretrained_overlay(variant, kwargs.get("pretrained_cfg"), overlay)
    tag = kwargs.get("pretrained_cfg")
    own = _TAG_ARGS.get(f"{variant}.{tag}", {}) if isinstance(tag, str) else {}
    kwargs = {**args, **own, **kwargs}
    if kwargs.get("features_only"):
        kwargs.setdefault("feature_norms", True)
    first = {"conv": "stem.0", "residual": "stem.0.conv"}.get(kwargs.get("stem"))
    if first is not None:  # where timm changes the input channels of weights
        kwargs["pretrained_cfg_overlay"] = {"first_conv": first} | (kwargs.get("pretrained_cfg_overlay") or {})
    stages = kwargs["layers"]
    levels = len(stages) if isinstance(stages, (tuple, list)) else 4  # the constructor says what is wrong with another
    model = build_model(
        HCFormer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=dict(out_indices=tuple(range(levels)), feature_cls=FeatureMaps),
        **kwargs,
    )
    update_model_args(model, **own)  # save_for_hf writes them beside those that the caller gives
    return model


@register_model
def hcformer_nano(pretrained: bool = False, **kwargs: Any) -> HCFormer:
    """HCFormer-nano: 5.3 M parameters, 0.9 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(32, 64, 196, 224), heads=(4, 4, 8, 8), head_dim=16)
    return _create_hcformer("hcformer_nano", pretrained, args, **kwargs)


@register_model
def hcformer_tiny(pretrained: bool = False, **kwargs: Any) -> HCFormer:
    """HCFormer-tiny: 7.0 M parameters, 1.0 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(32, 64, 196, 320), heads=(4, 4, 8, 8), head_dim=24)
    return _create_hcformer("hcformer_tiny", pretrained, args, **kwargs)


@register_model
def hcformer_small(pretrained: bool = False, **kwargs: Any) -> HCFormer:
    """HCFormer-small: 16.1 M parameters, 2.9 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(2, 2, 6, 2), dims=(64, 128, 320, 512), heads=(4, 4, 8, 8), head_dim=32)
    return _create_hcformer("hcformer_small", pretrained, args, **kwargs)


@register_model
def hcformer_medium(pretrained: bool = False, **kwargs: Any) -> HCFormer:
    """HCFormer-medium: 33.6 M parameters, 6.4 GFLOPs at 224 px as the paper counts them."""
    args = dict(layers=(4, 4, 12, 4), dims=(64, 128, 320, 512), heads=(6, 6, 12, 12), head_dim=32)
    return _create_hcformer("hcformer_medium", pretrained, args, **kwargs)
