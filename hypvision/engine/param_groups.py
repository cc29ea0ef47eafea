"""Parameter groups for the engine's configs: those of timm, and those of models with points on a
manifold.

A constructor builds the optimiser that a config describes:
``optim_wrapper=dict(constructor="TimmParamGroups", optimizer=dict(type="AdamW", lr=1e-3),
paramwise_cfg=dict(...))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler import MultiStepLR
from mmengine.registry import (
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
)
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn
from torch.optim import Optimizer

from hypvision.geometry import named_manifold_parameters
from hypvision.io import HypvisionError, Plain, Values, explaining
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, param_groups
from hypvision.optim.groups import exempt_names

from .precision import Muon

for _optimizer in (RiemannianSGD, RiemannianAdam, RiemannianAdamW):
    OPTIMIZERS.register_module(module=_optimizer, force=True)

# timm's Muon (Jordan et al., 2024) orthogonalises the updates of weight matrices and kernels and
# uses AdamW for the rest; :class:`ParamGroups` leaves tables of vectors to AdamW, too. PyTorch's
# Muon accepts only matrices, so timm's is registered.
OPTIMIZERS.register_module("TimmMuon", module=Muon)


class ParamGroups:
    """Base class of constructors: builds the wrapper that a config describes, with an optimiser of
    the parameter groups that the subclass makes. ``paramwise_cfg`` holds the subclass's options,
    whose names and defaults are in ``defaults``."""

    defaults: Values = {}

    def __init__(self, optim_wrapper_cfg: Plain, paramwise_cfg: Plain | None = None):
        self.optim_wrapper_cfg = {"type": "OptimWrapper", **optim_wrapper_cfg}
        self.optimizer_cfg = dict(self.optim_wrapper_cfg.pop("optimizer"))
        self.options = {**self.defaults, **(paramwise_cfg or {})}
        unknown = sorted(set(self.options) - set(self.defaults))
        if unknown:
            raise HypvisionError(
                f"optim_wrapper.paramwise_cfg has {', '.join(map(repr, unknown))}, but "
                f"{type(self).__name__} knows {', '.join(self.defaults)}. Correct the config."
            )

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Return the wrapper of the optimiser for a model."""
        inner: Any = model.module if is_model_wrapper(model) else model
        groups = self.groups(inner)
        if self.optimizer_cfg["type"] in ("TimmMuon", Muon):
            groups = _vectors_apart(groups, inner)
        with explaining(
            lambda error: (
                f"optim_wrapper.optimizer of the config is wrong: {str(error).rstrip('.')}."
            ),
            TypeError,
            ValueError,
        ):
            optimizer = OPTIMIZERS.build(dict(self.optimizer_cfg, params=groups))
        self.check(optimizer)
        return OPTIM_WRAPPERS.build(self.optim_wrapper_cfg, default_args=dict(optimizer=optimizer))

    def groups(self, model: nn.Module) -> list[Plain]:
        """Return the parameter groups of a model, as optimisers take them."""
        raise NotImplementedError

    def check(self, optimizer: Optimizer) -> None:
        """Raise an error if the optimiser cannot use the groups of this class."""


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TimmParamGroups(ParamGroups):
    """Parameter groups of timm, with weight decay and learning rate by the kind and depth of a
    layer.

    One-dimensional parameters (biases, norms, layer scales) and those that the model names in
    ``no_weight_decay()`` get no weight decay. With ``layer_decay`` the learning rate is multiplied
    by this factor from each layer of the timm backbone to the layer before it; parts that a task
    adds (heads, necks) have the full rate. With ``lr_mult`` single modules have a rate of their
    own, such as those that fine-tuning adds to a pretrained network.

    Options: ``layer_decay`` in (0, 1], default none; ``lr_mult``, factors by the name of a module
    or parameter, e.g. ``{"backbone.mapper": 10.0}``. In a name ``*`` stands for any text. A factor
    of 0 leaves the named parameters out of the optimiser, so that no schedule can raise their rate:
    ``{"backbone.stages.*.layer_scale1": 0.0}``.
    """

    defaults = dict(layer_decay=None, lr_mult=None)

    def groups(self, model: nn.Module) -> list[Plain]:
        groups = self._decay_groups(model)
        if self.options["lr_mult"]:
            groups = self._scaled(groups, model, dict(self.options["lr_mult"]))
        return groups

    def _decay_groups(self, model: nn.Module) -> list[Plain]:
        decay = self.optimizer_cfg.get("weight_decay", 0.0)
        layer_decay = self.options["layer_decay"]
        if layer_decay is None:
            spared = exempt_names(model)
            named = [(_decay_name(name, p, spared), p) for name, p in model.named_parameters()]
            return _weight_decay_groups(named, decay, spared)
        backbone = next(
            (module for module in model.modules() if hasattr(module, "group_matcher")), None
        )
        if backbone is None:
            raise HypvisionError(
                "optim_wrapper.paramwise_cfg.layer_decay needs a timm model that groups its layers "
                "(one with 'group_matcher'), which this config does not have. Remove 'layer_decay'."
            )
        base_lr = self.optimizer_cfg["lr"]
        groups = param_groups_layer_decay(
            backbone, decay, no_weight_decay_list=exempt_names(backbone), layer_decay=layer_decay
        )
        for group in groups:
            # mmengine's schedulers change the rate of each group and ignore timm's lr_scale.
            group["lr"] = base_lr * group.pop("lr_scale")
        inside = {id(parameter) for parameter in backbone.parameters()}
        rest = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if id(parameter) not in inside
        ]
        return groups + _weight_decay_groups(rest, decay, exempt_names(model))

    def _scaled(
        self, groups: list[Plain], model: nn.Module, lr_mult: Mapping[str, float]
    ) -> list[Plain]:
        """Split each group by the factors of the learning rate, and drop parameters whose factor is
        0."""
        factors: dict[int, float] = {}
        for module, factor in lr_mult.items():
            factors |= dict.fromkeys(map(id, _parameters_of(model, module)), factor)
        base: float = self.optimizer_cfg["lr"]
        scaled: list[Plain] = []
        for group in groups:
            params = list(group["params"])
            # A rate of 0 would not freeze parameters, because schedules with ``eta_min`` raise it
            # again; so parameters of factor 0 are left out.
            for factor in sorted({factors.get(id(p), 1.0) for p in params} - {0.0}):
                part = [p for p in params if factors.get(id(p), 1.0) == factor]
                scaled.append({**group, "params": part, "lr": group.get("lr", base) * factor})
        return scaled


def _parameters_of(model: nn.Module, module: str) -> list[nn.Parameter]:
    """Return the parameters in the module, or the parameter, that ``module`` names, which may have
    ``*``."""
    found = [
        parameter
        for name, parameter in model.named_parameters()
        if fnmatchcase(name, module) or fnmatchcase(name, f"{module}.*")
    ]
    if not found:
        raise HypvisionError(
            f"optim_wrapper.paramwise_cfg.lr_mult names '{module}', but the model has no parameter "
            "in a module of that name. It has "
            f"{', '.join(name for name, _ in model.named_children())}, ... Correct the name."
        )
    return found


def _decay_name(name: str, parameter: nn.Parameter, spared: set[str]) -> str:
    """Return the name under which timm sees a parameter: timm exempts every name that ends in
    "bias" from weight decay, but tables of relative position biases should decay, so theirs get an
    ending."""
    is_table = parameter.dim() > 1 and name.endswith(".bias") and name not in spared
    return f"{name}_table" if is_table else name


def _weight_decay_groups(
    named: list[tuple[str, nn.Parameter]], decay: float, spared: set[str]
) -> list[Plain]:
    """Return timm's groups for the named parameters; timm calls only ``named_parameters()`` of a
    model."""
    part: Any = SimpleNamespace(named_parameters=lambda: named)
    return param_groups_weight_decay(part, decay, no_weight_decay_list=spared)


# Names of parameters, or of their modules, whose rows are independent vectors: positions, proxies
# of classes, words that are prompts, attributes and keys of few-shot methods, the Gaussians of a
# hierarchy.
_VECTORS = (
    "positional_embedding", "pos_embed", "metric_loss", "hier_loss", "proxies", "ctx",
    "learner.visual", "deep_text", "deep_visual", "learner.keys", "lathadapter.attributes",
    "tree.mean", "tree.log_variance",
)  # fmt: skip


def _vectors_apart(groups: list[Plain], model: nn.Module) -> list[Plain]:
    """Put embeddings (of tokens, of positions), proxies of classes and points of manifolds into
    groups of their own, which Muon updates by AdamW: their rows are independent vectors, which must
    not be orthogonalised."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables |= {id(p) for _, p, _ in named_manifold_parameters(model)}
    named = model.named_parameters()
    tables |= {id(p) for name, p in named if any(f".{part}." in f".{name}." for part in _VECTORS)}
    separated = []
    for group in groups:
        for apart, more in ((False, {}), (True, {"use_fallback": True})):
            part = [p for p in group["params"] if (id(p) in tables) == apart]
            separated += [{**group, "params": part, **more}] if part else []
    return separated


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class RiemannianParamGroups(ParamGroups):
    """Parameter groups with points on a manifold, made by :func:`hypvision.optim.param_groups`.

    Options: ``manifold_lr_scale``, ``manifold_weight_decay``, ``curvature_lr``,
    ``curvature_lr_scale``; and ``decay_all`` (False): if True, biases, norms and other parameters
    without weight decay get it, too, as in the official code of HCNN. Curvatures never get it.
    """

    defaults = dict(
        manifold_lr_scale=None,
        manifold_weight_decay=None,
        curvature_lr=None,
        curvature_lr_scale=None,
        decay_all=False,
    )

    def groups(self, model: nn.Module) -> list[Plain]:
        rate = self.optimizer_cfg["lr"]
        decay = self.optimizer_cfg.get("weight_decay", 0.0)
        options = {name: value for name, value in self.options.items() if value is not None}
        decay_all = options.pop("decay_all")
        groups = param_groups(model, rate, decay, **options)
        for group in groups:
            if decay_all and group["name"] == "no_weight_decay":
                group["weight_decay"] = decay
            if decay_all and group["name"] == "points_no_weight_decay":
                group["weight_decay"] = options.get("manifold_weight_decay", decay)
        return groups


@PARAM_SCHEDULERS.register_module()
class GroupMultiStepLR(MultiStepLR):
    """mmengine's ``MultiStepLR`` for some of the parameter groups.

    Groups whose name is in ``leave_out`` keep their rate; a name may be absent, since not every
    model has points. In the recipe of HCNN, points, whose rate is that of the weights divided by 5,
    leave out the first drop of the rate.
    """

    def __init__(self, optimizer: Any, *args: Any, leave_out: Sequence[str] = (), **kwargs: Any):
        self.leave_out = tuple(leave_out)
        # ``any`` instead of ``all``, because mmengine's wrapper adds an unnamed group to log the
        # rate.
        if self.leave_out and not any("name" in group for group in optimizer.param_groups):
            raise HypvisionError(
                "param_scheduler has 'leave_out', but the parameter groups of the optimiser have "
                "no names. Set optim_wrapper.constructor to RiemannianParamGroups."
            )
        super().__init__(optimizer, *args, **kwargs)

    def _get_value(self) -> list[float]:
        pairs = zip(super()._get_value(), self.optimizer.param_groups)
        # A name also stands for its group without weight decay: "points" for
        # "points_no_weight_decay".
        names = (*self.leave_out, *(f"{name}_no_weight_decay" for name in self.leave_out))
        return [g[self.param_name] if g.get("name") in names else value for value, g in pairs]
