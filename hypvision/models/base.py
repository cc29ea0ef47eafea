"""Base classes of the networks: timm's interface for stages, and loading of any checkpoint.

``timm.create_model(..., checkpoint_path=FILE)`` passes on the names of weights as they are in the
file. :class:`AnyCheckpoint` lets ``load_state_dict`` translate them, so that official files, files
of trainings and the zoo's small files load however a model is created.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg
from timm.models._features import FeatureGetterNet, feature_take_indices
from torch import Tensor, nn

from hypvision.checkpoints.match import check_kinds, filtered
from hypvision.checkpoints.pretrained import pretrained_overlay
from hypvision.checkpoints.read import allow_training_files, network_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import ArgumentError, Plain, at_least, between, one_of

from .timm_models import forget_weights, read_overlay

# the names of timm's poolings that keep the number of channels
POOLS = ("avg", "max", "avgmax", "fast", "fastavg", "fastmax", "fastavgmax", "")

# the entries of timm's pretrained configs that are the same for all networks of hypvision
COMMON_CFG = dict(
    url="", num_classes=1000, min_input_size=(3, 32, 32), interpolation="bicubic",
    classifier="head", mean=IMAGENET_DEFAULT_MEAN, std=IMAGENET_DEFAULT_STD,
)  # fmt: skip

allow_training_files()  # timm reads the file of checkpoint_path before any code of a model runs


def build_model(cls: type[nn.Module], variant: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    """Return the network that :func:`timm.models.build_model_with_cfg` builds; the file of
    ``pretrained_cfg_overlay`` is read by hypvision's reader.

    Raises:
        ArgumentError: ``feature_cls`` is not ``"getter"``.
    """
    if kwargs.get("features_only"):
        # timm's other extractors return what stages pass to each other: points of a hyperboloid,
        # maps without the norms of features.
        one_of(("getter",), feature_cls=kwargs.pop("feature_cls", "getter"))
    if pretrained:
        kwargs["pretrained_cfg_overlay"] = read_overlay(kwargs.get("pretrained_cfg_overlay"))
    return forget_weights(build_model_with_cfg(cls, variant, pretrained, **kwargs))


def with_zoo(
    variant: str, pretrained: bool, tags: Mapping[str, Plain], kwargs: Plain
) -> tuple[Plain, Plain]:
    """Return the network's arguments that weights of the zoo need (from ``tags``, by the weights'
    name ``VARIANT.TAG``), and the caller's arguments, in which timm's overlay names the file of the
    weights if they are to be loaded."""
    tag = kwargs.get("pretrained_cfg")
    if pretrained:
        overlay = pretrained_overlay(variant, tag, kwargs.get("pretrained_cfg_overlay"))
        kwargs = {**kwargs, "pretrained_cfg_overlay": overlay}
    return tags.get(f"{variant}.{tag}", {}) if isinstance(tag, str) else {}, kwargs


def check_sizes(in_chans: int, **rates: Any) -> None:
    """Raise an error for images without channels, or for a rate of dropout or of stochastic depth
    that is no share."""
    at_least(1, integer=True, in_chans=in_chans)
    between(0, 1, **rates)


def check_pool(global_pool: str, num_classes: int, known: Iterable[str] = POOLS) -> None:
    """Raise an error for a pooling that a network lacks, or for a classifier without pooling."""
    one_of(known, global_pool=global_pool)
    if not global_pool and num_classes:
        raise ArgumentError(
            "global_pool='' leaves maps, which no classifier takes. Set num_classes=0 as well, or "
            "name a pooling."
        )


def level_indices(levels: int, indices: int | Sequence[int] | None) -> list[int]:
    """Return the numbers of the levels that timm's ``out_indices`` mean, each once, in the order of
    the maps."""
    given = indices if indices is None or isinstance(indices, int) else list(indices)
    if given in ([], 0):
        raise ArgumentError(f"The indices must name a level at least, got {indices}.")
    return sorted(set(feature_take_indices(levels, given)[0]))


def head_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters and buffers of a timm model's classifier or
    classifiers."""
    get_classifier: Any = model.get_classifier
    classifier = get_classifier()
    heads = classifier if isinstance(classifier, (tuple, list)) else (classifier,)
    inside = {id(value) for head in heads for value in chain(head.parameters(), head.buffers())}
    named = chain(model.named_parameters(), model.named_buffers())
    return {name for name, value in named if id(value) in inside}


class AnyCheckpoint(nn.Module):
    """A network whose ``load_state_dict`` accepts every checkpoint that the
    ``checkpoint_filter_fn`` of its family accepts.

    The network's class and the function ``checkpoint_filter_fn`` must be defined in the same
    module.
    """

    def _load_from_state_dict(self, state_dict: Plain, prefix: str, *args: Any) -> None:
        if not prefix:
            weights = filtered(self, network_weights(state_dict), start=True)
            _replace(state_dict, weights, self.state_dict())
        super()._load_from_state_dict(state_dict, prefix, *args)


class FeatureMaps(FeatureGetterNet):
    """timm's wrapper that returns feature maps, always in the order of the network, whatever the
    order of ``out_indices``.

    It also loads checkpoints of the whole network and leaves out the weights of parts that it
    dropped.
    """

    _pruned: frozenset[str] = frozenset()  # the default serves older pickles, which lack it

    def __init__(self, model: Any, out_indices: int | Sequence[int] = 4, **kwargs: Any):
        whole = frozenset(model.state_dict())
        super().__init__(
            model, tuple(level_indices(len(model.feature_info), out_indices)), **kwargs
        )
        self._pruned = whole - model.state_dict().keys()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Switch on or off that blocks are recomputed in backward instead of keeping their
        activations."""
        model: Any = self.model
        model.set_grad_checkpointing(enable)

    def _load_from_state_dict(self, state_dict: Plain, prefix: str, *args: Any) -> None:
        expected = self.state_dict()
        if not prefix and not state_dict.keys() <= expected.keys():
            weights = filtered(self.model, network_weights(state_dict), start=True)
            # Parts that the network was created without, such as a head, are left out like the
            # pruned ones; other unknown names stay, so that PyTorch reports them.
            parts = {_part(name) for name in self.model.state_dict()}
            kept = {n: v for n, v in weights.items() if n not in self._pruned and _part(n) in parts}
            _replace(state_dict, {f"model.{name}": value for name, value in kept.items()}, expected)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _part(name: str) -> str:
    """Return the name of the module to which a weight belongs, in a network or in the backbone
    (``trunk``) inside of one."""
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "trunk" else first


def _replace(state_dict: Plain, weights: Weights, expected: StateDict) -> None:
    """Replace the content of a state dict by ``weights``; raise an error if their numbers are of
    another kind (such as integers) than the model ``expected``."""
    check_kinds(expected, weights)
    state_dict.clear()
    state_dict.update(weights)


class StagedModel(AnyCheckpoint):
    """A network that consists of ``stem``, ``stages``, ``norm`` and ``head``, with timm's methods
    for such networks."""

    stem: nn.Module
    stages: nn.ModuleList  # each stage has the attribute grad_checkpointing
    norm: nn.Module
    global_pool: nn.Module
    head: nn.Module
    drop_rate: float
    num_classes: int
    num_features: int
    head_hidden_size: int
    feature_info: list[Plain]

    def _enter(self, x: Tensor) -> Tensor:
        """Return the map that the stem makes of images."""
        out: Tensor = self.stem(x)
        return out

    def _normed(self, x: Tensor) -> Tensor:
        """Return the map of the last stage after the final norm."""
        out: Tensor = self.norm(x)
        return out

    def _stage_map(self, stage: int, x: Tensor, norm: bool) -> Tensor:
        """Return the map of a stage in the form that users get, with the final norm if ``norm``."""
        raise NotImplementedError

    def _prune(self, taken: list[int], last: int, prune_norm: bool) -> None:
        """Drop the modules of stages after the stage ``last``, or of stages that are not
        ``taken``."""
        raise NotImplementedError

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` (0: none), and the pooling if it is
        given."""
        raise NotImplementedError

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Switch on or off that blocks are recomputed in backward instead of keeping their
        activations."""
        for stage in self.stages:
            setattr(stage, "grad_checkpointing", enable)  # noqa: B010 - an attribute that not every module has

    def get_classifier(self) -> nn.Module:
        """Return the head, or an identity if there is none."""
        return self.head

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last map ``(B, C, h, w)`` of images ``(B, in_chans, H, W)``, after the final
        norm."""
        x = self._enter(x)
        for stage in self.stages:
            x = stage(x)
        return self._normed(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits ``(B, num_classes)`` of a last map, or with ``pre_logits`` its pooled
        features ``(B, C)``."""
        pooled = F.dropout(self.global_pool(x), p=self.drop_rate, training=self.training)
        return pooled if pre_logits else self.head(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the maps of stages, and the final features.

        Args:
            x: images ``(B, in_chans, H, W)``.
            indices: which stages: the last n for an integer n, all for None, else their numbers.
            norm: whether the final norm, if there is one, is applied to the map of the last stage.
            stop_early: whether stages after the last one asked for are left out.
            output_fmt: ``"NCHW"`` only.
            intermediates_only: whether the list of maps is returned alone.

        Returns:
            The list of maps ``(B, C_i, H_i, W_i)``; before it, unless ``intermediates_only``, what
            :meth:`forward_features` returns, or the last map computed.
        """
        if output_fmt != "NCHW":
            raise ArgumentError(
                f"output_fmt must be 'NCHW', the only format of these maps, got {output_fmt!r}."
            )
        taken = level_indices(len(self.stages), indices)
        max_index = taken[-1]
        last = len(self.stages) - 1
        maps: list[Tensor] = []
        x = self._enter(x)
        for i, stage in enumerate(self.stages):
            if not stop_early or i <= max_index:
                x = stage(x)
                if i in taken:
                    maps.append(self._stage_map(i, x, norm and i == last))
        if intermediates_only:
            return maps
        return self._normed(x) if not stop_early or max_index == last else x, maps

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the modules that the given stages do not need, and return the numbers of these
        stages."""
        taken = level_indices(len(self.stages), indices)
        last = taken[-1]
        prune_end = last < len(self.stages) - 1
        self.stages = self.stages[: last + 1]
        self._prune(taken, last, prune_norm or prune_end)
        if prune_end:
            self.num_features = self.head_hidden_size = self.feature_info[last]["num_chs"]
        if prune_head or prune_end:
            self.reset_classifier(0, "")
        return taken
