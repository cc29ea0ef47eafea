"""Any timm model as the backbone of an mmseg or mmdet model.

:class:`TimmBackbone` is registered in mmengine's root registry, where configs of both libraries
find it::

    backbone = dict(
        type="TimmBackbone",
        model_name="hcformer_small",
        out_indices=(0, 1, 2, 3),
        init_cfg=dict(type="Pretrained", checkpoint="classifier.pth"),
    )
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModule, PretrainedInit, update_init_info
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader
from timm.layers import PatchEmbed
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from hypvision.checkpoints.match import check_tuning, check_unknown, compare, filtered
from hypvision.checkpoints.read import network_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.checkpoints.wrappers import common_prefix, flat
from hypvision.io import HypvisionError, Plain, ensure
from hypvision.nn.batch_statistics import is_batch_norm
from hypvision.tasks.classification import create_backbone


@MODELS.register_module()
class TimmBackbone(BaseModule):
    """A timm model that returns maps of several levels.

    The keyword arguments of timm's model constructors (``drop_path_rate``, ``in_chans``,
    ``img_size``, ...) are passed on. Inputs of any size work: models that take one size only are
    created without this restriction where timm can do so, and inputs are padded by zeros at the
    bottom and on the right where the patches need it. (Networks that add maps of several strides,
    such as HRNet, need ``pad_multiple=32``.)

    Args:
        model_name: name in :func:`timm.list_models`, after ``import hypvision``.
        out_indices: timm's numbers of the levels to return, which come in the order of the network.
            Transformers and ConvNeXt have four levels, of strides 4 to 32; classical ConvNets such
            as ResNet have five, and level 0 is the stem, of stride 2.
        pretrained: load the weights of timm, or those of the zoo for a name such as
            ``model_name="hcformer_nano.cifar10"``.
        checkpoint_path: load the weights in this file or URL, or of ``"zoo:NAME"``; see
            :meth:`load_pretrained`.
        frozen_stages: -1: all parameters train; 0: the stem is frozen (with class tokens and
            position embeddings); k: the first k stages (for a plain ViT, blocks) are frozen too.
            Frozen parts get no gradients and stay in eval mode. The mapper of a Hi-Mapper belongs
            to no stage.
        norm_eval: keep batch norms in eval mode, so that their running statistics do not change.
        with_cp: save memory by computing activations again in the backward pass.
        pad_multiple: pad the sides of inputs to multiples of this number; None: the size of the
            patches where the patch embedding does not pad.
        unused: levels of ``out_indices`` that the neck ignores; the norms of these levels are
            frozen. The engine sets this if a neck starts at a later level.
        init_cfg: ``dict(type="Pretrained", checkpoint=..., prefix=...)`` loads weights by
            :meth:`load_pretrained`; other types are mmengine's.

    Attributes:
        out_channels: channels of each level that is returned.
        strides: input pixels for a pixel of each level that is returned.
        num_stages: number of stages that ``frozen_stages`` can count.

    Raises:
        HypvisionError: the model is unknown, does not have these levels or stages or does not
            support ``with_cp``, or the checkpoint does not fit.
    """

    timm_model: Any  # a timm model or a wrapper of one, which have no common base class
    init_cfg: dict | list[dict] | None

    def __init__(
        self,
        model_name: str,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        pretrained: bool = False,
        checkpoint_path: str = "",
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        pad_multiple: int | None = None,
        unused: Sequence[int] = (),
        init_cfg: dict | list[dict] | None = None,
        **timm_kwargs: Any,
    ):
        super().__init__(init_cfg)
        self.model_name = model_name
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.timm_model = _create(model_name, self.out_indices, pretrained, timm_kwargs)
        levels = self.timm_model.feature_info
        # Networks return maps in the order of computation, whatever the order of out_indices, so
        # the indices are sorted.
        levels.out_indices = tuple(
            sorted({index % len(levels.info) for index in levels.out_indices})
        )
        # Without this mark mmengine would call init_weights of the models, which undoes
        # pretrained=True.
        self.timm_model.is_init = True
        self.channels_last = str(getattr(self.timm_model, "output_fmt", "NCHW")).endswith("NHWC")
        self.out_channels: list[int] = self.timm_model.feature_info.channels()
        self.strides: list[int] = self.timm_model.feature_info.reduction()
        patches = (part for part in self.timm_model.modules() if isinstance(part, PatchEmbed))
        cut = max((max(part.patch_size) for part in patches if not part.dynamic_img_pad), default=1)
        self.pad_multiple = cut if pad_multiple is None else pad_multiple
        self._stem_and_stages = _split(self._base, self.timm_model.feature_info.info)
        if frozen_stages >= 0:
            self._freeze()
        norms: Any = getattr(self._base, "feature_norms", {})
        for number in unused if norms else ():
            norms[number].requires_grad_(False)
        self.train()
        if with_cp:
            self._use_checkpointing()
        if checkpoint_path:
            self.load_pretrained(checkpoint_path)

    @property
    def _base(self) -> nn.Module:
        """The network itself, without those of timm's wrappers that do not rebuild it."""
        if isinstance(self.timm_model, FeatureGetterNet):
            return self.timm_model.model
        return getattr(self.timm_model, "graph_module", self.timm_model)

    @property
    def num_stages(self) -> int:
        """The number of stages that ``frozen_stages`` can count."""
        return len(self._stem_and_stages) - 1

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the maps ``(B, C_i, H_i, W_i)`` of the levels in ``out_indices`` for images ``(B,
        in_chans, H, W)``.

        A map covers the image, and its padding if any, from the upper left corner: ``H_i = ceil(H /
        stride_i)`` for most models, and ``floor`` for models with a stem of non-overlapping
        convolutions, which leave out a rest.
        """
        right = -x.shape[3] % self.pad_multiple
        bottom = -x.shape[2] % self.pad_multiple
        if right or bottom:
            x = F.pad(x, (0, right, 0, bottom))
        maps = self.timm_model(x)
        if self.channels_last:
            maps = [level.permute(0, 3, 1, 2) for level in maps]
        # Some networks compute channels-last, but heads use view(), which needs contiguous maps.
        return tuple(level.contiguous() for level in maps)

    # Freezing stages

    def _frozen(self) -> Iterator[nn.Module]:
        for names in self._stem_and_stages[: self.frozen_stages + 1]:
            # Names are kept, because conversions such as that to SyncBatchNorm replace the modules.
            for name in names:
                yield self._base.get_submodule(name)

    def _freeze(self) -> None:
        ensure(
            self._stem_and_stages,
            f"The stages of '{self.model_name}' are not known: set frozen_stages=-1.",
        )
        ensure(
            self.frozen_stages <= self.num_stages,
            f"'{self.model_name}' with out_indices={self.out_indices} has {self.num_stages} "
            f"stages: frozen_stages={self.frozen_stages} is too large.",
        )
        for module in self._frozen():
            module.requires_grad_(False)
        # Position embeddings and class tokens are frozen as well: they belong to the modules that
        # contain the stages.
        paths = [
            name.split(".")
            for names in self._stem_and_stages[: self.frozen_stages + 1]
            for name in names
        ]
        for holder in {".".join(path[:depth]) for path in paths for depth in range(len(path))}:
            for parameter in self._base.get_submodule(holder).parameters(recurse=False):
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> TimmBackbone:
        """Set the mode; frozen parts, and batch norms with ``norm_eval``, stay in eval mode."""
        super().train(mode)
        if self.frozen_stages >= 0:
            for module in self._frozen():
                module.eval()
        if self.norm_eval:
            for module in self.modules():
                if is_batch_norm(module):
                    module.eval()
        return self

    def _use_checkpointing(self) -> None:
        model: Any = (
            self.timm_model if hasattr(self.timm_model, "set_grad_checkpointing") else self._base
        )
        try:
            model.set_grad_checkpointing(True)
        except (AttributeError, AssertionError) as error:
            raise HypvisionError(
                f"'{self.model_name}' has no gradient checkpointing: set with_cp=False."
            ) from error

    # Loading weights

    def init_weights(self) -> None:
        """Initialise the weights as mmengine does, but load checkpoints of classifiers by
        :meth:`load_pretrained`."""
        done = self.is_init
        given = self.init_cfg
        configs = [given] if isinstance(given, dict) else list(given or [])
        pretrained = [
            config for config in configs if config["type"] in ("Pretrained", PretrainedInit)
        ]
        self.init_cfg = [config for config in configs if config not in pretrained]
        super().init_weights()
        self.init_cfg = given
        if done:
            return
        for config in pretrained:
            self.load_pretrained(
                config["checkpoint"], config.get("prefix"), config.get("map_location", "cpu")
            )
            # The attribute exists while the enclosing model initialises its weights.
            if hasattr(self, "_params_init_info"):
                update_init_info(
                    self, init_info=f"TimmBackbone: loaded from {config['checkpoint']}"
                )

    def load_pretrained(
        self, checkpoint: str, prefix: str | None = None, map_location: Any = "cpu"
    ) -> None:
        """Load the weights of a classifier, of a whole segmenter or detector, or of timm.

        The part of the file that belongs to this network is found by its names, whatever prefix
        they have (``backbone.``, ``model.``, ...). The classifier's head and final norm are left
        out; weights that the file lacks keep their values. ``checkpoint`` is a file,
        ``"zoo:NAME"``, or a URL with the file's checksum; with ``prefix`` only weights whose names
        begin with it are used."""
        loaded = CheckpointLoader.load_checkpoint(str(checkpoint), map_location, "current")
        weights = network_weights(loaded, part=None)
        if prefix:
            weights = _below(f"{prefix.rstrip('.')}.", weights, checkpoint)
        base = self._base
        expected = base.state_dict()
        weights = _inside(weights, expected)
        started = _rename(base, weights, start=True)
        weights = _rename(base, weights)
        kept = [name for name in expected if name in started and name not in weights]
        check_tuning(weights.keys() - expected.keys(), checkpoint)
        weights = self._without_other_parts(weights, expected)
        needed = {name: value for name, value in expected.items() if name not in kept}
        found = compare(needed, weights)
        if found.mismatched or found.share < 0.8:
            raise HypvisionError(
                f"The checkpoint '{checkpoint}' does not fit the backbone '{self.model_name}': "
                f"{len(found.matched)} of "
                f"{len(found.matched) + len(found.missing) + len(found.mismatched)} weights match. "
                f"{found.describe()}. Give a checkpoint of this architecture, or correct "
                "model_name."
            )
        check_unknown(found, checkpoint)
        base.load_state_dict(weights, strict=False)
        rest = found._replace(missing=[*found.missing, *kept]).describe()
        print_log(
            f"{self.model_name}: loaded {len(found.matched)} weights from {checkpoint}. {rest}",
            "current",
        )

    def _without_other_parts(self, weights: StateDict, expected: Weights) -> StateDict:
        """Return the weights without those of parts that this network lacks (head, later
        stages)."""
        units = _units(self._base, self.timm_model.feature_info.info)
        parts = tuple(f"{flat(name)}_" for name, module in units if [*module.parameters()])
        return {
            name: value
            for name, value in weights.items()
            if name in expected or flat(name).startswith(parts)
        }


def _inside(weights: StateDict, expected: Weights) -> StateDict:
    """Return the weights of this network in those of a file, whatever prefix they have."""
    # The file may have the names of a Hi-Mapper, or those of its backbone alone.
    names = [*expected, *(name.removeprefix("trunk.") for name in expected)]
    start = common_prefix(names, weights)
    return {
        name[len(start) :]: value for name, value in weights.items() if flat(name).startswith(start)
    }


def _below(prefix: str, weights: StateDict, checkpoint: str) -> StateDict:
    """Return the weights whose names begin with a prefix, under their names without it."""
    inside = {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
    if not inside:
        raise HypvisionError(
            f"No weight in '{checkpoint}' has a name with the prefix '{prefix}'; there are "
            f"{', '.join(list(weights)[:3])}, ... Correct the prefix of init_cfg, or leave it out."
        )
    return inside


def _create(
    model_name: str, out_indices: tuple[int, ...], pretrained: bool, timm_kwargs: Plain
) -> nn.Module:
    """Return the timm model, made to accept inputs of any size if it has an argument for this."""
    for flexible in ({"strict_img_size": False}, {"dynamic_img_size": True}, {}):
        arguments = {**flexible, **timm_kwargs}
        try:
            return create_backbone(
                model_name,
                features_only=True,
                out_indices=out_indices,
                pretrained=pretrained,
                **arguments,
            )
        except HypvisionError as error:
            unknown = flexible.keys() & re.findall(r"'(\w+)'", str(error))
            if not (isinstance(error.__cause__, TypeError) and unknown):
                raise
        except (AssertionError, IndexError) as error:
            raise HypvisionError(
                f"'{model_name}' cannot return the levels out_indices={out_indices}: "
                f"{error or type(error).__name__}. timm.create_model(NAME, "
                "features_only=True).feature_info lists those it has."
            ) from error
        except RuntimeError as error:
            if "features_only" not in str(error) and "No pretrained weights" not in str(error):
                raise
            raise HypvisionError(f"'{model_name}' cannot be a TimmBackbone: {error}") from error
    raise AssertionError("the last attempt returns or raises")


def _units(module: nn.Module, levels: list[Plain], name: str = "") -> list[tuple[str, nn.Module]]:
    """Return the parts of a network, with their names, in the order of computation; modules that
    contain stages, at any depth, are split into their children."""
    children = list(module.named_children())
    holds = not name or any(flat(level["module"]).startswith(f"{flat(name)}_") for level in levels)
    if not (holds and children):
        return [(name, module)]
    prefix = f"{name}." if name else ""
    return [unit for inner, child in children for unit in _units(child, levels, prefix + inner)]


def _split(base: nn.Module, levels: list[Plain]) -> list[list[str]]:
    """Return the names of the modules of the stem, then those of each stage, which ends with its
    level; empty if the levels (timm's ``feature_info``) are not found."""
    units = [(name, flat(name), module) for name, module in _units(base, levels)]
    names = [name for name, *_ in units]
    holders = [
        index
        for index, (*_, module) in enumerate(units)
        if any(map(_is_matrix, module.parameters()))
    ]
    parts: list[list[str]] = []
    start = 0
    for number, level in enumerate(levels):
        end = f"{flat(level['module'])}_"
        # A unit belongs to a level if it contains the level, is the level, or lies in it.
        inside = [
            index
            for index in range(start, len(units))
            if f"{units[index][1]}_"[: len(end)] == end[: len(units[index][1]) + 1]
        ]
        if not inside:
            break  # timm pruned this and later levels
        stop = inside[-1] + 1
        # Level 0 is the stem if it ends in the first layer with a weight matrix, or in a norm or an
        # activation; otherwise the units before level 0 are the stem.
        if number == 0 and not (inside[0] == holders[0] or not {*inside} & {*holders}):
            parts.append(names[: inside[0]])
            start = inside[0]
        parts.append(names[start:stop])
        start = stop
    return parts


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.dim() > 1


def _rename(base: nn.Module, weights: StateDict, start: bool = False) -> StateDict:
    """Return the weights by the network's names, where it has such names; ``start``: with the
    network's own values of parts that a start may lack."""
    if not type(base).__module__.startswith("timm.models._"):
        # A model's own filter converts official names and resizes tables of position biases.
        weights = filtered(base, weights, start)
    expected = {flat(name): name for name in base.state_dict()}
    return {expected.get(flat(name), name): value for name, value in weights.items()}
