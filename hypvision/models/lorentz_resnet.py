"""Residual networks on the hyperboloid: HCNN (fully hyperbolic), HECNN (hybrid), "+" components.

Papers: "Fully Hyperbolic Convolutional Neural Networks for Computer Vision", Bdeir, Schwethelm,
Landwehr (ICLR 2024), official code kschwethelm/HyperbolicCV; "Robust Hyperbolic Learning with
Curvature-Aware Optimization", Bdeir, Burchert, Schmidt-Thieme, Landwehr (NeurIPS 2025), the "+"
components. With ``plus=False`` the networks compute what the official code does, and its
checkpoints are converted (:mod:`hypvision.models.lorentz_resnet_checkpoint`).

Feature maps of hyperbolic stages are the space parts of points, one point per pixel:
``(B, C, H, W)`` as in any other network. The time is computed where a formula needs it. An image
enters a fully hyperbolic network as space parts. The feature maps that the network returns
(``features_only=True``, ``forward_intermediates``) are tangent vectors at the origin.

The Euclidean network of the same architecture, for comparisons, is
``hecnn_resnet18(hyperbolic_stages=(), head_type="linear")``; ``hyperbolic_stages=(), plus=False``,
with the Lorentz head alone, is the published hybrid (EL-ResNet).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers import DropPath, SelectAdaptivePool2d, calculate_drop_path_rates
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from timm.models._input import update_model_args
from timm.models._manipulate import checkpoint
from torch import Tensor, nn
from torch.types import Device

from hypvision.checkpoints.types import StateDict
from hypvision.geometry import Lorentz
from hypvision.geometry.lorentz.cones import space_logits
from hypvision.io import ArgumentError, Plain, at_least, depths, more_than, one_of
from hypvision.nn import (
    ChangeManifold,
    EfficientLorentzConv2d,
    LorentzBatchNorm2d,
    LorentzConv2d,
    LorentzGlobalAvgPool2d,
    LorentzResidual,
    ToLorentz,
    ToTangent,
)

from .base import (
    COMMON_CFG,
    POOLS,
    FeatureMaps,
    StagedModel,
    build_model,
    check_pool,
    check_sizes,
    with_zoo,
)
from .lorentz_resnet_checkpoint import checkpoint_filter_fn

EXPANSION = 4  # ratio of output to inner channels in a bottleneck


class LorentzClassifier(nn.Module):
    """Lorentz multinomial logistic regression whose parameters have the names that timm expects of
    heads.

    See :class:`hypvision.nn.LorentzMLR`; ``weight`` holds the normals ``z`` ``(K, n)``, ``bias``
    the offsets ``a`` ``(K,)``.

    Shapes:
        space parts ``(..., n)`` to logits ``(..., K)``, computed in float32 also under autocast.
    """

    manifold: Lorentz

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        manifold: Lorentz,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features = in_features
        self.num_classes = num_classes
        self.manifold = manifold
        self.weight = nn.Parameter(
            torch.empty(num_classes, in_features, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype))
        for parameter in (self.weight, self.bias):  # initial values as published
            nn.init.uniform_(parameter, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        compute_dtype = torch.promote_types(self.weight.dtype, torch.float32)
        logits = space_logits(
            x.to(compute_dtype),
            self.weight.to(compute_dtype),
            self.bias.to(compute_dtype),
            self.manifold.c,
        )
        return logits.to(self.weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}"


class Add(nn.Module):
    """Residual connection ``x + y``, the Euclidean counterpart of
    :class:`~hypvision.nn.LorentzResidual`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@dataclass(frozen=True)
class Layers:
    """Factory of the layers of a stage: Euclidean layers, or those of a hyperboloid.

    Attributes:
        manifold: the hyperboloid; None for Euclidean layers.
        exact: whether convolutions are the published Lorentz convolution, not the efficient one.
        slope: slope of the maximum-distance rescaling; None for no rescaling.
        limit: radius that the rescaling does not exceed; None for
            :func:`hypvision.geometry.lorentz.max_distance`.
        clip: largest norm of Euclidean features that enter, see :class:`~hypvision.nn.ToLorentz`.
        options: further arguments of the efficient convolution.
        factory: ``device`` and ``dtype`` of the parameters.
    """

    manifold: Lorentz | None
    exact: bool
    slope: float | None
    limit: float | None
    clip: float | None
    options: Plain
    factory: Plain

    def conv(
        self, inside: int, outside: int, kernel: int, stride: int = 1, dilation: int = 1
    ) -> nn.Module:
        """Return a convolution with the padding that keeps the size at stride 1."""
        padding = dilation * (kernel // 2)
        sizes: Plain = dict(stride=stride, padding=padding, dilation=dilation)
        if self.manifold is None:
            return nn.Conv2d(inside, outside, kernel, bias=False, **sizes, **self.factory)
        if self.exact:
            return LorentzConv2d(inside, outside, kernel, self.manifold, **sizes, **self.factory)
        sizes |= dict(slope=self.slope, limit=self.limit, **self.options)
        return EfficientLorentzConv2d(
            inside, outside, kernel, self.manifold, **sizes, **self.factory
        )

    def norm(self, channels: int) -> nn.Module:
        """Return a batch norm."""
        if self.manifold is None:
            return nn.BatchNorm2d(channels, **self.factory)
        # The two published codes have different limits.
        exp_limit = 10.0 if self.slope is None else 100.0
        sizes: Plain = dict(slope=self.slope, limit=self.limit, exp_limit=exp_limit)
        return LorentzBatchNorm2d(channels, self.manifold, **sizes, **self.factory)

    def add(self) -> nn.Module:
        """Return a residual connection."""
        if self.manifold is None:
            return Add()
        return LorentzResidual(self.manifold, slope=self.slope, dim=1, limit=self.limit)

    def change(self, target: Lorentz | None) -> nn.Module:
        """Return the layer that maps features of this geometry to the hyperboloid ``target``, or to
        Euclidean space if it is None."""
        if self.manifold is target:
            return nn.Identity()
        if self.manifold is None:
            assert target is not None
            return ToLorentz(target, self.slope, self.clip, self.limit)
        if target is None:
            return ToTangent(self.manifold)
        return ChangeManifold(self.manifold, target, self.slope, self.limit)


class ConvNorm(nn.Module):
    """Convolution and batch norm: the stem, and the shortcut where a block changes the shape."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, layers: Layers):
        super().__init__()
        self.conv = layers.conv(inside, outside, kernel, stride)
        self.norm = layers.norm(outside)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        return out


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions, on maps ``(B, C, H, W)``, which are space parts if
    ``layers`` are hyperbolic. ``dilations`` are those of the two convolutions."""

    def __init__(
        self,
        inside: int,
        width: int,
        stride: int,
        layers: Layers,
        _: Layers,
        drop_path: float,
        dilations: tuple[int, int] = (1, 1),
    ):
        super().__init__()
        self.conv1 = layers.conv(inside, width, 3, stride, dilations[0])
        self.norm1 = layers.norm(width)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = layers.conv(width, width, 3, dilation=dilations[1])
        self.norm2 = layers.norm(width)
        reshape = stride != 1 or inside != width
        self.downsample = ConvNorm(inside, width, 1, stride, layers) if reshape else nn.Identity()
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.add = layers.add()
        self.act2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(self.conv1(x)))
        y = self.drop_path(self.norm2(self.conv2(y)))
        out: Tensor = self.act2(self.add(y, self.downsample(x)))
        return out


class Bottleneck(nn.Module):
    """Residual block of a 1x1, a 3x3 and a 1x1 convolution; the 3x3 one may have another geometry,
    ``core``, than the others.

    Euclidean ``layers`` around a hyperbolic ``core`` make the Lorentz-Core bottleneck (NeurIPS
    2025). The 3x3 convolution has the first of the ``dilations``, as in timm's ResNets.
    """

    def __init__(
        self,
        inside: int,
        width: int,
        stride: int,
        layers: Layers,
        core: Layers,
        drop_path: float,
        dilations: tuple[int, int] = (1, 1),
    ):
        super().__init__()
        outside = EXPANSION * width
        self.conv1 = layers.conv(inside, width, 1)
        self.norm1 = layers.norm(width)
        self.act1 = nn.ReLU(inplace=True)
        self.enter = layers.change(core.manifold)
        self.conv2 = core.conv(width, width, 3, stride, dilations[0])
        self.norm2 = core.norm(width)
        self.act2 = nn.ReLU(inplace=True)
        self.leave = core.change(layers.manifold)
        self.conv3 = layers.conv(width, outside, 1)
        self.norm3 = layers.norm(outside)
        reshape = stride != 1 or inside != outside
        self.downsample = ConvNorm(inside, outside, 1, stride, layers) if reshape else nn.Identity()
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.add = layers.add()
        self.act3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(self.act1(self.norm1(self.conv1(x))))
        y = self.leave(self.act2(self.norm2(self.conv2(y))))
        y = self.drop_path(self.norm3(self.conv3(y)))
        out: Tensor = self.act3(self.add(y, self.downsample(x)))
        return out


class Stage(nn.Module):
    """The blocks of one resolution, after a layer that maps features into their geometry."""

    def __init__(self, enter: nn.Module, blocks: list[nn.Module]):
        super().__init__()
        self.grad_checkpointing = False
        self.enter = enter
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
        return x


class Step(NamedTuple):
    """The stride and the dilation of a stage, and the pixels of the image for one of its map."""

    stride: int
    dilation: int
    reduction: int


def _steps(reduction: int, output_stride: int) -> list[Step]:
    """Return the steps of the four stages after a stem of this ``reduction``."""
    known = [size for size in (1, 2, 4, 8, 16, 32) if size >= reduction]
    one_of(known, output_stride=output_stride)
    found = []
    dilation = 1
    for stride in (1, 2, 2, 2):
        if reduction >= output_stride:
            dilation *= stride
            found.append(Step(1, dilation, reduction))
        else:
            reduction *= stride
            found.append(Step(stride, dilation, reduction))
    return found


# torch.fx cannot trace Python control flow that depends on sizes, curvatures and autocast, so each
# of these modules stays one node.
for _layer in (
    LorentzClassifier, LorentzConv2d, EfficientLorentzConv2d, LorentzBatchNorm2d, LorentzResidual,
    LorentzGlobalAvgPool2d, ToLorentz, ToTangent, ChangeManifold,
):  # fmt: skip
    register_notrace_module(_layer)


def _is_same_space(one: Lorentz | None, other: Lorentz | None) -> bool:
    """Return whether both arguments are hyperboloids and have the same curvature."""
    return one is not None and other is not None and bool(one.c == other.c)


class LorentzResNet(StagedModel):
    """Residual networks with hyperbolic layers, in all stages (HCNN) or in some (HECNN).

    Args:
        in_chans: input channels.
        num_classes: classes of the head, at least 0; 0 for none.
        global_pool: ``"avg"``, which is a centroid if the last stage is hyperbolic, or ``""`` for
            no pooling; Euclidean last stages also take timm's other poolings.
        layers: numbers of blocks of the four stages.
        block: ``"basic"``, ``"bottleneck"``, or ``"core"``, the Lorentz-Core bottleneck, in which
            only the 3x3 convolutions of hyperbolic stages are hyperbolic.
        widths: channels of the four stages, before the expansion of bottlenecks; the stem has as
            many as the first stage.
        stem: ``"cifar"``, a 3x3 convolution, or ``"imagenet"``, 7x7 of stride 2 and max pooling.
        hyperbolic_stem: whether the stem is hyperbolic; the image is then taken as space parts.
        hyperbolic_stages: numbers, from 1 to 4, of the stages that are hyperbolic.
        plus: whether the four arguments below that are None choose the components of NeurIPS 2025,
            or those of ICLR 2024.
        conv: ``"efficient"``, rotation and boost, or ``"exact"``, the published Lorentz
            convolution.
        learn_curvature: whether the curvatures of the encoder and of the head are learned. The
            optimisers of :mod:`hypvision.optim` move the points along with it (``move="project"``
            is the ablation).
        rescale: maximum-distance rescaling of points after convolutions, in batch norms, after
            residual connections and where Euclidean features become space parts. Without it
            Euclidean features of norm at most ``clip`` enter by the exponential map at the origin.
        slope: slope ``s`` of the rescaling.
        limit: radius that the rescaling does not exceed; None:
            :func:`~hypvision.geometry.lorentz.max_distance` of the curvature. A small one emulates
            the clipping of norms in earlier hyperbolic networks.
        clip: largest norm of Euclidean features that enter by the exponential map; None: 1. It
            cannot be given together with rescaling.
        curvature, head_curvature: initial ``c`` of encoder and head; the head's default is the
            encoder's.
        bounds: learned curvatures stay between these multiples of their initial values. The default
            keeps ``k = 1 / c`` in [0.05, 10] for ``curvature=1``.
        curvature_per_stage: whether each stage has a hyperboloid of its own instead of one for all.
        norm_match, boost: see :class:`~hypvision.nn.EfficientLorentzConv2d`.
        head_type: ``"lorentz"``, multinomial logistic regression, or ``"linear"``.
        drop_rate, drop_path_rate: rates of dropout before the head and of stochastic depth.
        output_stride: pixels of the image for a pixel of the last map, at most: stages that would
            exceed it dilate their convolutions in place of a stride, as timm's ResNets do for
            segmentation. Without it the last map has 32, or 8 with the stem ``"cifar"``.

    Raises:
        ValueError: an argument has an unknown value, whether the network uses it or not; a
            per-stage argument does not have four entries; ``clip`` is given with rescaling, or
            ``limit`` without it.
    """

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        layers: tuple[int, ...] = (2, 2, 2, 2),
        block: str = "basic",
        widths: tuple[int, ...] = (64, 128, 256, 512),
        stem: str = "cifar",
        hyperbolic_stem: bool = True,
        hyperbolic_stages: tuple[int, ...] = (1, 2, 3, 4),
        plus: bool = False,
        conv: str | None = None,
        learn_curvature: bool | None = None,
        rescale: bool | None = None,
        slope: float = 2.0,
        limit: float | None = None,
        clip: float | None = None,
        curvature: float = 1.0,
        head_curvature: float | None = None,
        bounds: tuple[float, float] = (0.1, 20.0),
        curvature_per_stage: bool = False,
        norm_match: str = "patch",
        boost: str = "axis",
        head_type: str = "lorentz",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        output_stride: int = 32,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        rescale = plus if rescale is None else rescale
        conv = conv or ("efficient" if plus else "exact")
        check_sizes(in_chans, drop_rate=drop_rate, drop_path_rate=drop_path_rate)
        _check_kinds(block, stem, conv, head_type)
        _check_stages(layers, widths, hyperbolic_stages, block == "core" and hyperbolic_stem)
        _check_numbers(rescale, slope, limit, clip, curvature, head_curvature, norm_match, boost)
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.head_type = head_type
        self.learn_curvature = plus if learn_curvature is None else learn_curvature
        self.bounds = (bounds[0], bounds[1])
        # This manifold only checks the bounds, also for networks without hyperbolic layers.
        Lorentz(curvature, bounds=self.bounds)

        wanted = [hyperbolic_stem, *(i in hyperbolic_stages for i in (1, 2, 3, 4))]
        factory: Plain = dict(device=device, dtype=dtype)
        inner = self._make_manifolds(wanted, curvature, curvature_per_stage, factory)
        self.head_manifold: Lorentz | None = None
        self.head_curvature = curvature if head_curvature is None else head_curvature
        options = dict(norm_match=norm_match, boost=boost)
        self._flat = Layers(
            None, conv == "exact", slope if rescale else None, limit, clip, options,
            factory=factory,
        )  # fmt: skip
        self._build_stem(in_chans, widths[0], stem == "imagenet", inner[0])
        steps = _steps(4 if stem == "imagenet" else 1, output_stride)
        self._build_stages(layers, widths, block, inner, steps, drop_path_rate)
        self.norm = nn.Identity()
        self._set_pool(global_pool, num_classes)
        self._set_head(num_classes)
        self.init_weights()
        # Every layer refers to the shared hyperboloids; state dicts leave out these duplicates of
        # their curvatures.
        self.register_state_dict_post_hook(_drop_aliases)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_restore_aliases)  # type: ignore[no-untyped-call]

    # Construction of the parts

    def _make_manifolds(
        self, wanted: list[bool], curvature: float, per_stage: bool, factory: Plain
    ) -> list[Lorentz | None]:
        """Return the hyperboloids of the stem and the stages, one for all or one for each; None
        where a part is Euclidean."""
        count = sum(wanted) if per_stage else min(1, sum(wanted))
        found = [
            Lorentz(curvature, self.learn_curvature, self.bounds).to(**factory)
            for _ in range(count)
        ]
        self.manifolds = nn.ModuleList(found)
        places = [sum(wanted[:i]) if per_stage else 0 for i in range(5)]
        return [found[place] if on else None for place, on in zip(places, wanted)]

    def _build_stem(self, in_chans: int, width: int, large: bool, manifold: Lorentz | None) -> None:
        kernel, stride = (7, 2) if large else (3, 1)
        self.stem = ConvNorm(
            in_chans, width, kernel, stride, replace(self._flat, manifold=manifold)
        )
        self.act = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()

    def _build_stages(
        self, layers: Sequence[int], widths: Sequence[int], block: str, inner: list[Lorentz | None],
        steps: list[Step], drop_path_rate: float,
    ) -> None:  # fmt: skip
        """Build the stages, and the layers from their geometry to Euclidean maps."""
        rates: Iterator[Any] = iter(calculate_drop_path_rates(drop_path_rate, sum(layers)))
        kind = BasicBlock if block == "basic" else Bottleneck
        stages = []
        self.feature_info = []
        channels = widths[0]
        # the manifolds (None: Euclidean) of the maps after the stem and after each stage
        self._outside = [inner[0]]
        before = 1  # the dilation of the convolution before
        for i, (depth, width, step) in enumerate(zip(layers, widths, steps)):
            core = replace(self._flat, manifold=inner[i + 1])
            outer = self._flat if block == "core" else core
            blocks: list[nn.Module] = []
            for j in range(depth):
                stride = 1 if j else step.stride
                dilations = (before, step.dilation)
                blocks.append(kind(channels, width, stride, outer, core, next(rates), dilations))
                before = step.dilation
                channels = width if block == "basic" else EXPANSION * width
            stages.append(Stage(self._change(self._outside[-1], outer.manifold), blocks))
            self._outside.append(outer.manifold)
            self.feature_info.append(
                dict(num_chs=channels, reduction=step.reduction, module=f"stages.{i}")
            )
        self.stages = nn.ModuleList(stages)
        self.feature_maps = nn.ModuleList(
            self._change(manifold, None) for manifold in self._outside[1:]
        )
        self.num_features = self.head_hidden_size = channels

    def _change(self, source: Lorentz | None, target: Lorentz | None) -> nn.Module:
        """Return the layer that maps features of ``source`` to ``target``; None is Euclidean
        space."""
        return replace(self._flat, manifold=source).change(target)

    def _set_pool(self, pool_type: str, num_classes: int) -> None:
        manifold = self._outside[-1]
        # Points of a hyperboloid can be pooled only to their centroid.
        check_pool(pool_type, num_classes, POOLS if manifold is None else ("avg", ""))
        if manifold is not None and pool_type:
            self.global_pool = LorentzGlobalAvgPool2d(manifold)
        else:
            self.global_pool = SelectAdaptivePool2d(pool_type=pool_type, flatten=bool(pool_type))

    def _set_head(self, num_classes: int) -> None:
        at_least(0, integer=True, num_classes=num_classes)  # 0: no head
        weight = next(self.stem.parameters())
        factory: Plain = {"device": weight.device, "dtype": weight.dtype}
        self.num_classes = num_classes
        source = self._outside[-1]
        if self.head_type != "lorentz" or num_classes == 0:
            self.head_manifold = None
        elif self.head_manifold is None:
            manifold = Lorentz(self.head_curvature, self.learn_curvature, self.bounds)
            self.head_manifold = manifold.to(**factory)
        target = self.head_manifold
        same = not self.learn_curvature and _is_same_space(source, target)
        self.head_enter = nn.Identity() if same else self._change(source, target)
        if num_classes == 0:
            self.head_enter = nn.Identity()
            self.head = nn.Identity()
        elif target is None:
            self.head = nn.Linear(self.num_features, num_classes, **factory)
        else:
            self.head = LorentzClassifier(self.num_features, num_classes, target, **factory)

    def init_weights(self) -> None:
        """Initialise Euclidean convolutions from a normal distribution of variance 2 / fan_out;
        hyperbolic layers initialise themselves, as published."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    # Methods of timm's interface

    def no_weight_decay(self) -> set[str]:
        """Return the names of the learned curvatures, which weight decay would pull to 1."""
        return {name for name, _ in self.named_parameters() if name.endswith("log_c")}

    def group_matcher(self, coarse: bool = False) -> Plain:
        """Return timm's patterns of parameter groups, from the stem to the head, for layer-wise
        learning rates."""
        return dict(
            stem=r"^stem|^manifolds",
            blocks=r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.blocks\.(\d+)",
        )

    def reset_classifier(
        self, num_classes: int, global_pool: str | None = None, head_type: str | None = None
    ) -> None:
        """Replace the head by a new one for ``num_classes`` (0: none).

        Args:
            num_classes: number of classes.
            global_pool: the new pooling; None: the present one.
            head_type: ``"lorentz"`` or ``"linear"``; None: the present one.
        """
        one_of((None, "lorentz", "linear"), head_type=head_type)
        frozen = not any(p.requires_grad for p in self.parameters())
        if global_pool is not None:
            self._set_pool(global_pool, num_classes)
        self.head_type = head_type or self.head_type
        self._set_head(num_classes)
        if frozen and self.head_manifold is not None:
            self.head_manifold.requires_grad_(False)
        for part in (self.global_pool, self.head_enter, self.head):
            part.train(self.training)

    def _enter(self, x: Tensor) -> Tensor:
        out: Tensor = self.maxpool(self.act(self.stem(x)))
        return out

    def _stage_map(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        """Return the map in Euclidean form: of hyperbolic stages tangent vectors at the origin."""
        out: Tensor = self.feature_maps[stage](x)
        return out

    def _prune(self, taken: list[int], last: int, prune_norm: bool) -> None:
        self.feature_maps = self.feature_maps[: last + 1]
        self._outside = self._outside[: last + 2]
        used = {id(module) for part in (self.stem, self.stages) for module in part.modules()}
        self.manifolds = nn.ModuleList(
            manifold for manifold in self.manifolds if id(manifold) in used
        )

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits ``(B, num_classes)`` of a last map, or with ``pre_logits`` its pooled
        features ``(B, C)``."""
        pooled = super().forward_head(x, pre_logits=True)
        return pooled if pre_logits else self.head(self.head_enter(pooled))

    def curvatures(self) -> dict[str, float]:
        """Return the curvatures ``c > 0`` by the names of their manifolds, learned or not."""
        found: Plain = {f"manifolds.{i}": manifold for i, manifold in enumerate(self.manifolds)}
        if self.head_manifold is not None:
            found["head_manifold"] = self.head_manifold
        return {name: float(manifold._value()) for name, manifold in found.items()}


def _check_kinds(block: str, stem: str, conv: str, head_type: str) -> None:
    one_of(("basic", "bottleneck", "core"), block=block)
    one_of(("cifar", "imagenet"), stem=stem)
    one_of(("exact", "efficient"), conv=conv)
    one_of(("lorentz", "linear"), head_type=head_type)


def _check_stages(
    layers: Sequence[int], widths: Sequence[int], hyperbolic: Iterable[int], points_enter_core: bool
) -> None:
    if len(layers) != 4 or len(widths) != 4:
        raise ArgumentError(
            f"layers and widths must have one entry for each of 4 stages, got {layers} and "
            f"{widths}."
        )
    depths(layers=layers)
    if not isinstance(hyperbolic, Iterable):
        raise ArgumentError(
            f"hyperbolic_stages must be a tuple, such as (1, 3), got {hyperbolic!r}."
        )
    if not set(hyperbolic) <= {1, 2, 3, 4}:
        raise ArgumentError(f"hyperbolic_stages must be numbers from 1 to 4, got {hyperbolic}.")
    if points_enter_core:
        raise ArgumentError("Core bottlenecks take Euclidean maps. Set hyperbolic_stem=False.")


def _check_numbers(
    rescale: bool, slope: float, limit: float | None, clip: float | None, curvature: float,
    head_curvature: float | None, norm_match: str, boost: str,
) -> None:  # fmt: skip
    one_of(("patch", "sum", "none"), norm_match=norm_match)
    one_of(("axis", "scale", "full", "none"), boost=boost)
    positive = dict(
        slope=slope, limit=limit, clip=clip, curvature=curvature, head_curvature=head_curvature
    )
    more_than(0, **{name: value for name, value in positive.items() if value is not None})
    if clip is not None and rescale:
        raise ArgumentError(
            f"clip={clip} is for networks without rescaling. Leave it out, or set rescale=False."
        )
    if limit is not None and not rescale:
        raise ArgumentError(
            f"limit={limit} is the limit of the rescaling, which is off. Set rescale=True or "
            "plus=True."
        )


def _owners(model: nn.Module, prefix: str) -> dict[str, str]:
    """Return, by the name of every alias of a learned curvature, the name that the curvature has in
    state dicts."""
    first: dict[int, str] = {}
    aliases = {}
    for name, parameter in model.named_parameters(
        prefix=prefix.rstrip("."), remove_duplicate=False
    ):
        if name.endswith("log_c"):
            owner = first.setdefault(id(parameter), name)
            if owner != name:
                aliases[name] = owner
    return aliases


def _drop_aliases(module: nn.Module, state_dict: StateDict, prefix: str, *_: Any) -> None:
    for alias in _owners(module, prefix):
        state_dict.pop(alias, None)


def _restore_aliases(module: nn.Module, state_dict: StateDict, prefix: str, *_: Any) -> None:
    for alias, owner in _owners(module, prefix).items():
        if owner in state_dict:
            state_dict.setdefault(alias, state_dict[owner])


_cfg: partial[Plain] = partial(
    dict,
    COMMON_CFG,
    input_size=(3, 32, 32),
    pool_size=(4, 4),
    crop_pct=1.0,
    first_conv="stem.conv",
    license="mit",
    paper_name="Fully Hyperbolic Convolutional Neural Networks for Computer Vision",
    origin_url="https://github.com/kschwethelm/HyperbolicCV",
)
_PLUS = dict(
    paper_name="Robust Hyperbolic Learning with Curvature-Aware Optimization", license="apache-2.0"
)
default_cfgs = generate_default_cfgs(
    {
        "hcnn_resnet18.untrained": _cfg(),
        "hcnn_resnet50.untrained": _cfg(),
        "hecnn_resnet18.cifar10": _cfg(
            **_PLUS, url="zoo:hecnn_resnet18.cifar10", num_classes=10, pool_size=(1, 1),
            interpolation="bilinear", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
        ),
        # The star marks the default tag: a name without a tag builds the published network.
        "hecnn_resnet18.untrained*": _cfg(**_PLUS),
        "hecnn_resnet50.untrained": _cfg(**_PLUS),
    }
)  # fmt: skip
_TAG_ARGS: dict[str, Plain] = {
    "hecnn_resnet18.cifar10": dict(stem="imagenet", widths=(24, 48, 96, 192))
}


# the input that timm's data pipelines should assume for networks with the stem for large images
_LARGE = dict(input_size=(3, 224, 224), pool_size=(7, 7), crop_pct=0.875)


def _create(variant: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    if kwargs.get("stem") == "imagenet":
        kwargs["pretrained_cfg_overlay"] = {
            **_LARGE,
            **(kwargs.get("pretrained_cfg_overlay") or {}),
        }
    own, kwargs = with_zoo(variant, pretrained, _TAG_ARGS, kwargs)
    maps = dict(out_indices=(0, 1, 2, 3), feature_cls=FeatureMaps)
    options = dict(pretrained_filter_fn=checkpoint_filter_fn, feature_cfg=maps)
    model = build_model(LorentzResNet, variant, pretrained, **options, **{**own, **kwargs})
    update_model_args(model, **own)  # save_for_hf writes these beside the caller's arguments
    return model


@register_model
def hcnn_resnet18(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a fully hyperbolic ResNet-18 (HCNN): 11.2 M parameters; ``plus=True`` for HCNN+."""
    return _create("hcnn_resnet18", pretrained, **kwargs)


@register_model
def hcnn_resnet50(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a fully hyperbolic ResNet-50 (HCNN) of bottlenecks: 23.7 M parameters; ``plus=True``
    for HCNN+."""
    args = dict(layers=(3, 4, 6, 3), block="bottleneck")
    return _create("hcnn_resnet50", pretrained, **dict(args, **kwargs))


@register_model
def hecnn_resnet18(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a hybrid ResNet-18 (HECNN+): stages 1 and 3 hyperbolic, 11.2 M parameters."""
    args = dict(hyperbolic_stem=False, hyperbolic_stages=(1, 3), plus=True)
    return _create("hecnn_resnet18", pretrained, **dict(args, **kwargs))


@register_model
def hecnn_resnet50(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return a hybrid ResNet-50 (HECNN+) of Lorentz-Core bottlenecks: 23.7 M parameters."""
    args = dict(layers=(3, 4, 6, 3), block="core", hyperbolic_stem=False, plus=True)
    return _create("hecnn_resnet50", pretrained, **dict(args, **kwargs))
