"""Hi-Mapper: a plug-in that gives any timm backbone a tree of visual parts, which improves the
image feature.

Paper: "Improving Visual Recognition with Hyperbolical Visual Hierarchy Mapping", Kwon, Jang, Kim,
Kim, Sohn (CVPR 2024). The official code, kwonjunn01/Hi-Mapper, has the tree, the modules and the
losses; their connection to backbones is written after the paper. The plug-in itself is in
:mod:`hypvision.models.hierarchy_mapper`.

>>> # DeiT's weights, a new mapper
>>> model = timm.create_model("himapper_deit_tiny_patch16_224", pretrained=True)
>>> model = timm.create_model(
...     "himapper", backbone="convnext_tiny.fb_in1k", pretrained=True, num_classes=10
... )
>>> out = model.forward_with_hierarchy(images)
>>> loss = F.cross_entropy(out["logits"], labels) + model.aux_loss(out)

Every model ``himapper_X`` can also be created by the name ``X_himapper``.

There are two presets: ``"proper"``, the default, and ``"official"``, which repeats the released
code (see :data:`PRESETS`). Single arguments change single choices of a preset. Inputs may have any
size that the backbone accepts.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import timm
import torch
from timm.layers import ClassifierHead
from timm.models import generate_default_cfgs, get_pretrained_cfg, register_model
from timm.models._input import update_model_input_size
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn
from torch.types import Device

from hypvision.checkpoints.pretrained import pretrained_overlay
from hypvision.io import (
    ArgumentError,
    HypvisionError,
    Plain,
    at_least,
    did_you_mean,
    more_than,
    one_of,
)
from hypvision.losses.himapper import LOGITS, gaussian_prior_kl, tree_contrastive_loss

from .base import (
    POOLS,
    AnyCheckpoint,
    FeatureMaps,
    build_model,
    check_pool,
    check_sizes,
    head_names,
    level_indices,
)
from .hierarchy_mapper import HierarchyMapper, MapLayout, Moments
from .himapper_checkpoint import (  # the filters are found here by their names
    BACKBONES,
    checkpoint_filter_fn,  # noqa: F401
    start_filter_fn,
)
from .timm_models import create_model

PRESETS: dict[str, Plain] = {
    "proper": dict(
        eval_noise="mean", kv="patch", lift="exp0", logit="neg_distance", one_by_one=False
    ),
    "official": dict(
        eval_noise="sample", kv="official", lift="official", logit="distance", one_by_one=True
    ),
}
"""By preset, the arguments for which the released code and the intent of the paper differ."""

# The number of tokens without a place in the image, by the class of networks that do not state it.
# Of the CoaTs only the Lite ones are meant, because the others return several sequences.
_PREFIX = {"VOLO": 1, "CoaT": 1}
# Some transformers have further poolings; their constructors report whether they do.
_POOLS = (*POOLS, "token", "map", "prr")
# By class, what a network returns that has not one map as its final feature.
_UNSUPPORTED = {
    "CrossVit": "two sequences of tokens of different sizes",
    "EfficientVim": "a list of maps and states",
    "PoolingVisionTransformer": "class tokens alone, without a map",
}


class HiMapper(AnyCheckpoint):
    """A timm network with a :class:`~hypvision.models.hierarchy_mapper.HierarchyMapper`.

    Args:
        backbone: name for :func:`timm.create_model` (a tag chooses its weights), or a network.
        num_classes: classes of the backbone's head; 0 for no head. None: a network given as a
            module keeps its own.
        in_chans: input channels; None: 3, or those of a backbone given as a module.
        preset: ``"proper"`` or ``"official"``, see :data:`PRESETS`; ``eval_noise``, ``kv``,
            ``lift`` and ``logit`` change single choices of it.
        leaves, levels: numbers N of leaves and L of levels of the tree.
        width, heads, mlp_ratio, mapper_drop: inner width, heads, MLP expansion and dropout of the
            mapper's attention layers.
        tree, mixture, eval_noise, lift, geometry, curvature, residual: see
            :class:`~hypvision.models.hierarchy_mapper.HierarchyMapper`.
        kv: which tokens are keys and values, see
            :class:`~hypvision.models.hierarchy_mapper.MapLayout`.
        logit, temperature: see :func:`~hypvision.losses.himapper.tree_contrastive_loss`.
        contrastive_weight, kl_weight: weights alpha and beta of the auxiliary losses.
        dense: what ``forward_intermediates`` does to the last map. None or ``"init"``: nothing;
            ``"init"`` also drops the mapper, for a backbone that Hi-Mapper has fine-tuned.
            ``"aux"``: nothing, but in training the auxiliary losses are computed for
            :meth:`pop_losses`. ``"fuse"``: the map attends to the tree and is enriched. ``"aux"``
            and ``"fuse"`` are not in the paper.
        pretrained_backbone: whether the backbone's weights are loaded through timm.
        device, dtype: device and dtype of the parameters.
        **backbone_args: further arguments of :func:`timm.create_model` for the backbone:
            ``drop_path_rate``, ``img_size``, ...

    Raises:
        HypvisionError: an option has an unknown value, N and L do not fit, the backbone has no map,
            or weights cannot be fetched.
        TypeError: the backbone does not have one of the arguments.
    """

    trunk: Any  # a timm model; timm's models have no common base class
    mapper: HierarchyMapper | None
    head: nn.Linear | None
    num_classes: int
    num_features: int
    head_hidden_size: int
    feature_info: list[Plain]
    _losses: dict[str, Tensor] | None

    def __init__(
        self,
        backbone: str | nn.Module,
        num_classes: int | None = None,
        in_chans: int | None = None,
        preset: str = "proper",
        leaves: int = 32,
        levels: int = 4,
        width: int = 128,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        mapper_drop: float = 0.1,
        tree: str = "gaussian",
        mixture: str = "moment",
        eval_noise: str | None = None,
        kv: str | None = None,
        lift: str | None = None,
        geometry: str = "lorentz",
        curvature: float = 1.0,
        logit: str | None = None,
        temperature: float = 1.0,
        contrastive_weight: float = 0.1,
        kl_weight: float = 0.01,
        residual: bool = True,
        dense: str | None = None,
        pretrained_backbone: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **backbone_args: Any,
    ):
        super().__init__()
        one_of(PRESETS, preset=preset)
        given = dict(eval_noise=eval_noise, kv=kv, lift=lift, logit=logit)
        chosen = PRESETS[preset] | {
            name: value for name, value in given.items() if value is not None
        }
        one_of(("patch", "official", "all"), kv=chosen["kv"])
        one_of(LOGITS, logit=chosen["logit"])
        one_of((None, "init", "aux", "fuse"), dense=dense)
        check_pool(backbone_args.get("global_pool", "avg"), num_classes != 0, _POOLS)
        more_than(0, temperature=temperature)
        check_sizes(3 if in_chans is None else in_chans, mapper_drop=mapper_drop)
        at_least(0, integer=True, num_classes=num_classes or 0)
        self.preset = preset
        self.logit = chosen.pop("logit")
        self.temperature = temperature
        self.dense = dense
        self.contrastive_weight = contrastive_weight
        self.kl_weight = kl_weight
        self._losses = None
        with torch.device(device) if device is not None else nullcontext():
            backbone_args |= {} if num_classes is None else dict(num_classes=num_classes)
            trunk = _create_trunk(backbone, pretrained_backbone, in_chans, backbone_args)
            self.in_chans: int = getattr(trunk, "in_chans", in_chans or 3)
            self._take_trunk(trunk if dtype is None else trunk.to(dtype))
            self.mapper = HierarchyMapper(
                self.num_features, self.head_hidden_size, leaves, levels, width, heads, mlp_ratio,
                mapper_drop, tree, mixture, geometry=geometry, curvature=curvature,
                residual=residual, layout=self._layout(chosen.pop("kv")),
                dense_dim=self.feature_info[-1]["num_chs"] if dense == "fuse" else None,
                device=device, dtype=dtype, **chosen,
            )  # fmt: skip
            self._set_own_head(num_classes or 0)

    def _take_trunk(self, trunk: Any) -> None:
        """Store the backbone, and copy the attributes that timm reads from a network."""
        self.trunk = trunk
        self.num_classes = trunk.num_classes
        self.num_features = trunk.num_features
        self.head_hidden_size = getattr(trunk, "head_hidden_size", None) or trunk.num_features
        info = getattr(trunk, "feature_info", [])
        self.feature_info = [
            dict(entry, module=f"trunk.{entry['module']}") for entry in getattr(info, "info", info)
        ]
        if hasattr(trunk, "output_fmt"):
            self.output_fmt = trunk.output_fmt
        self.distilled = isinstance(trunk, VisionTransformerDistilled)

    @property
    def set_input_size(self) -> Callable[..., None]:
        """The method that changes the size of the images. timm asks whether a network has it: this
        one has, if its backbone does."""
        if not hasattr(self.trunk, "set_input_size"):
            raise AttributeError("The backbone takes images of any size.")
        return self._set_input_size

    def _set_input_size(self, *sizes: Any, **options: Any) -> None:
        """Change the size of the images as the backbone's method does, and note it for timm's
        ``save_for_hf``."""
        before = dict(getattr(self.trunk, "_model_args", {}))
        self.trunk.set_input_size(*sizes, **options)
        after = self.trunk._model_args
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        changed.pop("img_size", None)
        update_model_input_size(self, self.trunk._traits["img_size"], **changed)

    def _layout(self, kv: str) -> MapLayout:
        return MapLayout(
            channels_last=str(getattr(self.trunk, "output_fmt", "NCHW")).endswith("NHWC"),
            prefix=getattr(
                self.trunk, "num_prefix_tokens", _PREFIX.get(type(self.trunk).__name__, 0)
            ),
            distilled=self.distilled,
            kv=kv,
        )

    def _tree_mapper(self) -> HierarchyMapper:
        if self.mapper is None:
            raise HypvisionError(
                "The mapper was pruned, so this network has no hierarchy. Create the model anew."
            )
        return self.mapper

    # Methods of timm's interface

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: the backbone's own, and the
        Gaussians of the tree, curvature and scale, which decay would pull to zero."""
        names = {f"trunk.{name}" for name in getattr(self.trunk, "no_weight_decay", set)()}
        if self.mapper is not None:
            own = {"tree.mean", "tree.log_variance", "lift.manifold.log_c", "lift.scale"}
            names |= {f"mapper.{name}" for name, _ in self.mapper.named_parameters() if name in own}
        return names

    def group_matcher(self, coarse: bool = False) -> Plain:
        """Return timm's patterns of parameter groups of the backbone's layers; the mapper comes
        last, with the head."""

        def inside(pattern: str) -> str:
            anywhere = re.sub(r"(?<!\[)\^", "", pattern)
            return rf"^trunk\.(?:{anywhere})"

        groups = self.trunk.group_matcher(coarse=coarse)
        return {
            name: spec
            if spec is None
            else inside(spec)
            if isinstance(spec, str)
            else [(inside(pattern), suffix) for pattern, suffix in spec]
            for name, spec in groups.items()
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Switch on or off that the blocks and the decomposition are recomputed in backward instead
        of keeping their activations."""
        self.trunk.set_grad_checkpointing(enable)
        if self.mapper is not None:
            self.mapper.grad_checkpointing = enable

    def set_distilled_training(self, enable: bool = True) -> None:
        """Switch on or off that a distilled DeiT returns the logits of both heads in training."""
        self.trunk.set_distilled_training(enable)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """Return the backbone's classifier, or the one added here if the backbone has none."""
        return self.trunk.get_classifier() if self.head is None else self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` (0: none), and the pooling if it is
        given.

        Without pooling there is no image feature to enrich: :meth:`forward` then returns the
        backbone's map.
        """
        at_least(0, integer=True, num_classes=num_classes)
        if global_pool is not None:
            check_pool(global_pool, num_classes, _POOLS)
        try:
            self.trunk.reset_classifier(
                num_classes, *(() if global_pool is None else (global_pool,))
            )
        except AssertionError as error:
            raise ArgumentError(
                f"The backbone has no global_pool={global_pool!r}: {error}"
            ) from error
        self.num_classes = num_classes
        self._set_own_head(num_classes)

    def _set_own_head(self, num_classes: int) -> None:
        """Add a linear head if the backbone has no classifier."""
        self.head = None
        if num_classes and isinstance(self.trunk.get_classifier(), nn.Identity):
            like = next(self.trunk.parameters())
            self.head = nn.Linear(
                self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype
            )
            nn.init.trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)
            self.head.train(self.training)
            self.num_classes = num_classes

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the backbone's map of images ``(B, in_chans, H, W)``, in the backbone's own
        format."""
        out: Tensor = self.trunk.forward_features(x)
        return out

    def _pool(self, features: Tensor) -> Tensor:
        """Return the backbone's image features ``(B, cls_dim)``, or with a distillation token
        ``(B, 2, cls_dim)``."""
        pooled: Tensor
        if self.distilled:
            pooled = self.trunk.head_drop(features[:, :2])
        else:
            pooled = self.trunk.forward_head(features, pre_logits=True)
        return pooled

    def _classify(self, feature: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits of enriched features, averaged over several heads; in a distilled
        training the logits of both heads."""
        classifier = self.get_classifier()
        heads = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
        features = feature.unbind(1) if self.distilled else [feature] * len(heads)
        logits = [_apply_head(head, x) for head, x in zip(heads, features)]
        if self.distilled and self.trunk.distilled_training and self.training:
            return logits[0], logits[1]
        return logits[0] if len(logits) == 1 else sum(logits[1:], logits[0]) / len(logits)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits ``(B, num_classes)`` for the backbone's map, or with ``pre_logits`` the
        enriched image features ``(B, cls_dim)``."""
        feature: Tensor = self._tree_mapper()(x, self._pool(x))
        if pre_logits:
            return feature.mean(1) if self.distilled else feature
        return self._classify(feature)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.forward_head(self.forward_features(x))

    # Maps of several levels

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the backbone's ``forward_intermediates``; with ``dense="fuse"`` its last level is
        enriched by the tree."""
        if not hasattr(self.trunk, "forward_intermediates"):
            raise HypvisionError(
                f"The backbone {type(self.trunk).__name__} cannot return maps of several levels "
                "(it has no forward_intermediates). Take another backbone."
            )
        taken = level_indices(len(self.feature_info), indices)
        last = taken[-1]
        arguments = dict(indices=taken, norm=norm, output_fmt=output_fmt, **kwargs)
        active = self.dense == "fuse" or (self.dense == "aux" and self.training)
        if self.mapper is None or not active or last != len(self.feature_info) - 1:
            return self.trunk.forward_intermediates(
                x, stop_early=stop_early, intermediates_only=intermediates_only, **arguments
            )
        final, maps = self.trunk.forward_intermediates(x, stop_early=False, **arguments)
        nodes, _ = self._tree_mapper().decompose(self._tree_mapper().layout.memory(final))
        if self.training:
            points = self._tree_mapper().levels(self._tree_mapper().lift(nodes))
            self._losses = self._auxiliary(points, self._tree_mapper().tree.moments())
        if self.dense == "fuse":
            place = taken.index(last)
            maps[place] = self._fused(maps[place], nodes, output_fmt)
        return maps if intermediates_only else (final, maps)

    def _fused(self, level: Any, nodes: Tensor, output_fmt: str) -> Any:
        if isinstance(level, tuple):  # its prefix tokens follow the map
            return (self._fused(level[0], nodes, output_fmt), *level[1:])
        mapper = self._tree_mapper()
        if level.ndim == 3:
            return level + mapper.updates(level, nodes)
        if output_fmt == "NHWC":
            return level + mapper.updates(level.flatten(1, 2), nodes).reshape(level.shape)
        delta = mapper.updates(level.flatten(2).transpose(1, 2), nodes)
        return level + delta.transpose(1, 2).reshape(level.shape)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the modules that the given levels do not need, and return the numbers of these
        levels. The mapper is dropped unless the last level stays and the mapper changes it
        (``dense="fuse"`` or ``"aux"``) or the head stays."""
        levels = len(self.feature_info)
        used = self.dense in ("fuse", "aux") or not prune_head
        keep = used and level_indices(levels, indices)[-1] == levels - 1
        # The decomposition needs the final map, including layers that some networks count as part
        # of the head.
        taken: list[int] = self.trunk.prune_intermediate_layers(
            indices, prune_norm and not keep, prune_head and not keep
        )
        if not keep:
            self.mapper = None
        elif prune_head:
            self._tree_mapper().encoder = None
            self.trunk.reset_classifier(0)
        if prune_head:
            self.head = None
            self.num_classes = 0
        return taken

    def pop_losses(self) -> dict[str, Tensor]:
        """Return the weighted auxiliary losses of the last :meth:`forward_intermediates` in
        training, and forget them; an empty dict if there are none."""
        found = self._losses
        self._losses = None
        return found or {}

    # The hierarchy of an image

    def forward_with_hierarchy(
        self,
        x: Tensor,
        noise: list[Tensor] | None = None,
        generator: torch.Generator | None = None,
        maps: bool = False,
    ) -> Plain:
        """Return the logits of images together with their trees, image features and auxiliary
        losses.

        Args:
            x: images ``(B, in_chans, H, W)``.
            noise: noise to use instead of random numbers, see
                :meth:`~hypvision.models.hierarchy_mapper.GaussianTree.sample`.
            generator: source of the random numbers; None: torch's global one.
            maps: whether attention maps are returned too.

        Returns:
            A dict with ``logits`` ``(B, num_classes)``; ``feature``, the enriched image feature
            ``(B, cls_dim)``; lists with an entry per level, the finest first: ``nodes``
            ``(B, n_l, C)``, ``points`` of the hyperboloid ``(B, n_l, D + 1)``, ``moments``, and
            with ``maps`` ``attention`` ``(B, n_l, M)`` of each node to the M tokens of the map (the
            mean over heads and samples); ``tokens`` ``(B, HW, C)`` of the image; ``curvature``; and
            ``losses``, a dict of the weighted auxiliary losses ``contrastive`` and ``kl``.
        """
        features = self.forward_features(x)
        pooled = self._pool(features)
        mapper = self._tree_mapper()
        moments = mapper.tree.moments()
        memory = mapper.layout.memory(features)
        nodes, attention = mapper.decompose(memory, noise, generator, maps)
        feature = mapper.attach(mapper.encode(pooled, nodes))
        points = mapper.levels(mapper.lift(nodes))
        curvature = torch.as_tensor(mapper.lift.manifold.c, device=nodes.device)
        out = dict(
            logits=self._classify(feature),
            feature=feature.mean(1) if self.distilled else feature,
            nodes=mapper.levels(nodes),
            points=points,
            moments=moments,
            curvature=curvature,
            tokens=mapper.layout.patches(features),
            losses=self._auxiliary(points, moments),
        )
        if attention is not None:
            out["attention"] = mapper.levels(attention)
        return out

    def _auxiliary(self, points: list[Tensor], moments: list[Moments]) -> dict[str, Tensor]:
        manifold = self._tree_mapper().lift.manifold
        contrastive = tree_contrastive_loss(points, manifold, self.logit, self.temperature)
        losses = dict(contrastive=self.contrastive_weight * contrastive)
        if self._tree_mapper().tree.distribution == "gaussian":
            losses["kl"] = self.kl_weight * gaussian_prior_kl(*moments[-1])
        return losses

    @staticmethod
    def aux_loss(hierarchy: Plain) -> Tensor:
        """Return the sum of the weighted auxiliary losses in the result of
        :meth:`forward_with_hierarchy`, to be added to the task's loss."""
        losses: list[Tensor] = list(hierarchy["losses"].values())
        return sum(losses[1:], losses[0])

    def head_names(self) -> set[str]:
        """Return the names of the classifier's parameters."""
        return head_names(self)

    def freeze(self, mode: str) -> None:
        """Switch off the gradients of a part of the backbone.

        Args:
            mode: what is frozen: ``"none"``, nothing; ``"patch_embed"``, the patch embedding or
                stem (the official recipe of DeiT); ``"attention"``, all but attention layers,
                position embeddings, the classifier and the mapper; ``"backbone"``, all but the
                classifier and the mapper.

        Raises:
            HypvisionError: there is no such mode, or the backbone has nothing to freeze or to train
                by the names that the mode means.
        """
        one_of(("none", "patch_embed", "attention", "backbone"), freeze=mode)
        heads = self.head_names()
        found = False
        for name, parameter in self.trunk.named_parameters():
            attention = re.search(
                r"(^|\.)(\w*attn\w*|attention|pos_embed\w*|relative_position\w*)(\.|$)", name
            )
            frozen = {
                "none": False,
                "patch_embed": bool(re.match(r"patch_embed|stem|conv_stem|conv1\.|bn1\.", name)),
                "attention": not attention,
                "backbone": True,
            }[mode] and f"trunk.{name}" not in heads
            parameter.requires_grad_(not frozen)
            found |= bool(attention) if mode == "attention" else frozen
        if mode != "none" and not found:
            raise HypvisionError(
                f"freeze={mode!r} does not fit the backbone {type(self.trunk).__name__}: it has no "
                "parameters of such names. Take 'none' or 'backbone'."
            )


def _apply_head(head: nn.Module, feature: Tensor) -> Tensor:
    """Return the logits of a feature by a classifier; some networks hand out the classifier
    together with its pooling, which has been done already, or as a convolution."""
    inner = head.fc if isinstance(head, ClassifierHead) else head
    convolution = isinstance(inner, nn.Conv2d)
    logits: Tensor = inner(feature[..., None, None] if convolution else feature)
    return logits.flatten(1) if convolution else logits


def _no_backbone(name: str) -> str:
    hint = did_you_mean(
        name.partition(".")[0], [known for known in timm.list_models() if known != name]
    )
    return (
        f"There is no backbone '{name}'.{hint} timm.list_models() lists all (after import "
        "hypvision)."
    )


def _create_trunk(
    backbone: str | nn.Module, pretrained: bool, in_chans: int | None, arguments: Plain
) -> Any:
    if isinstance(backbone, nn.Module):
        trunk: Any = backbone
        num_classes = arguments.pop("num_classes", None)
        if arguments or pretrained:
            raise HypvisionError(
                "A backbone that is a network already takes no further arguments, but got "
                f"{', '.join(arguments) or 'pretrained_backbone'}. Give them where it is created."
            )
        own = getattr(trunk, "in_chans", in_chans)
        if in_chans not in (None, own):
            raise HypvisionError(
                f"in_chans={in_chans}, but the given backbone takes images of {own} channels. "
                f"Create it with in_chans={in_chans}, or leave the argument out here."
            )
        if num_classes is not None and num_classes != trunk.num_classes:
            trunk.reset_classifier(num_classes)
    else:
        trunk = _create_by_name(backbone, pretrained, in_chans=in_chans or 3, **arguments)
    _refuse_without_map(trunk)
    return trunk


def _refuse_without_map(trunk: nn.Module) -> None:
    """Raise an error for a network whose final feature is no map."""
    gives = _UNSUPPORTED.get(type(trunk).__name__)
    if getattr(getattr(trunk, "stem", None), "class_token", None) is not None:
        gives = "points of a hyperboloid with a class token before those of the map"
    if gives:
        raise HypvisionError(
            f"The backbone {type(trunk).__name__} gives {gives}, but Hi-Mapper needs one feature "
            "map. Take another backbone."
        )


def _create_by_name(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    if not timm.is_model(name.partition(".")[0]):
        raise HypvisionError(_no_backbone(name))
    try:
        return create_model(name, pretrained, **kwargs)
    except AssertionError as error:
        raise ArgumentError(f"The backbone '{name}' refuses an argument: {error}") from error
    except (OSError, RuntimeError) as error:
        offline = (
            isinstance(error, OSError)
            or "download" in str(error).lower()
            or "offline" in str(error).lower()
        )
        if not (pretrained and offline):
            raise
        raise HypvisionError(
            f"The weights of the backbone '{name}' cannot be fetched ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}). Check the connection, or create the model "
            "with pretrained=False and load weights from a file: "
            "pretrained_cfg_overlay=dict(file=FILE) with pretrained=True."
        ) from error


class _Levels(FeatureMaps):
    """Network that returns the map of the last level of each resolution, or, for a backbone of one
    resolution, the maps of the last three blocks."""

    def __init__(self, model: HiMapper, out_indices: Any = None, **kwargs: Any):
        if out_indices is None:
            count = len(model.feature_info)
            out_indices = list(range(count)) if count <= 5 else 3
        super().__init__(model, out_indices, **kwargs)


# Registration in timm


def _prefixed(names: Any) -> Any:
    return (
        tuple(f"trunk.{n}" for n in names) if isinstance(names, (tuple, list)) else f"trunk.{names}"
    )


def _cfg(backbone: str, **kwargs: Any) -> Plain:
    """Return timm's config of a backbone, changed to the names of this network and without the
    place of the backbone's weights, because the whole network has other weights."""
    cfg = get_pretrained_cfg(backbone)
    if cfg is None:
        raise HypvisionError(_no_backbone(backbone))
    found: Plain = cfg.to_dict()
    renamed = {
        key: _prefixed(found[key]) if found.get(key) else None
        for key in ("first_conv", "classifier")
    }
    found.update(
        dict.fromkeys(("file", "hf_hub_id", "architecture", "tag")), url="",
        paper_ids="arXiv:2404.00974", **renamed,
        paper_name="Improving Visual Recognition with Hyperbolical Visual Hierarchy Mapping",
        origin_url="https://github.com/kwonjunn01/Hi-Mapper", **kwargs,
    )  # fmt: skip
    return found


default_cfgs = generate_default_cfgs(
    {
        **{
            f"{name}.{tag}": _cfg(f"{backbone}.{tag}")
            for backbone, tag in BACKBONES.items()
            for name in (f"himapper_{backbone}", f"{backbone}_himapper")
        },
        # Weights of whole networks in the zoo; a test compares these entries with the zoo's index.
        "himapper_tf_efficientnet_lite0.grocery": _cfg("tf_efficientnet_lite0.in1k")
        | dict(
            url="zoo:himapper_tf_efficientnet_lite0.grocery", num_classes=81,
            input_size=(3, 160, 160), pool_size=(5, 5), crop_pct=1.0,
        ),
    }
)  # fmt: skip


def _says_where(cfg: Any) -> bool:
    """Return whether a config of timm's names a place of weights of the whole network: a file, an
    address or a repository."""
    places = ("file", "url", "hf_hub_id", "state_dict")
    return isinstance(cfg, Mapping) and any(cfg.get(key) for key in places)


def _create_himapper(
    variant: str, pretrained: bool, backbone: str | nn.Module, **kwargs: Any
) -> nn.Module:
    """Return the network of a variant; with ``pretrained`` it has the weights of the backbone, or
    those of the whole network if a config names their place."""
    tag = kwargs.get("pretrained_cfg")
    known = get_pretrained_cfg(f"{variant}.{tag}") if isinstance(tag, str) else None
    if known:
        kwargs["pretrained_cfg"] = known.to_dict()
        if pretrained and str(known.url).startswith("zoo:"):
            overlay = kwargs.get("pretrained_cfg_overlay")
            kwargs["pretrained_cfg_overlay"] = pretrained_overlay(variant, known, overlay)
    whole = pretrained and (
        _says_where(kwargs.get("pretrained_cfg"))
        or _says_where(kwargs.get("pretrained_cfg_overlay"))
    )
    if not kwargs.get("pretrained_cfg"):
        kwargs["pretrained_cfg"] = _cfg_of(backbone)
    if kwargs.get("features_only"):
        kwargs.setdefault("dense", "fuse")
    given = dict(
        backbone=backbone,
        pretrained_backbone=pretrained and not whole,
        feature_cfg=dict(out_indices=None, feature_cls=_Levels),
    )
    return build_model(
        HiMapper, variant, whole, pretrained_filter_fn=start_filter_fn, **given, **kwargs
    )


def _cfg_of(backbone: str | nn.Module) -> Plain:
    """Return timm's config of a backbone, without a place of weights if the backbone is a
    module."""
    if not isinstance(backbone, str):
        cfg = dict(getattr(backbone, "pretrained_cfg", {}))
        cfg.pop("url", None)
        cfg.pop("hf_hub_id", None)
        return cfg
    try:
        return _cfg(backbone)
    except RuntimeError as error:  # timm's message about a tag that does not exist
        raise HypvisionError(f"The backbone '{backbone}' has no such weights: {error}") from error


@register_model
def himapper(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Return Hi-Mapper on the timm backbone ``backbone``, by default the paper's ResNet-50."""
    kwargs.setdefault("backbone", f"resnet50.{BACKBONES['resnet50']}")
    return _create_himapper("himapper", pretrained, **kwargs)


def _register(name: str, backbone: str, tag: str) -> None:
    def entry(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_himapper(name, pretrained, f"{backbone}.{tag}", **kwargs)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"Return Hi-Mapper on timm's {backbone}."
    register_model(entry)


for _backbone, _tag in BACKBONES.items():
    _register(f"himapper_{_backbone}", _backbone, _tag)
    _register(f"{_backbone}_himapper", _backbone, _tag)
