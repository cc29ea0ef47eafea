"""Parameter groups as timm makes them, and mixed precision where there is no GPU."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.model import is_model_wrapper
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS
from timm.optim import Muon, param_groups_layer_decay, param_groups_weight_decay
from torch import nn
from torch.optim import Optimizer

from hypvision.errors import HypvisionError
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, clip_grad_norm_

__all__ = [
    "BFloat16OptimWrapper",
    "RiemannianAmpOptimWrapper",
    "RiemannianOptimWrapper",
    "TimmParamGroups",
    "build_optimizer",
]

for _optimizer in (RiemannianSGD, RiemannianAdam, RiemannianAdamW):
    OPTIMIZERS.register_module(module=_optimizer, force=True)

# timm's Muon (Jordan et al., 2024) steps along orthogonalised gradients for weight matrices and kernels, and is AdamW
# for all else; :class:`TimmParamGroups` leaves tables of embeddings to AdamW, too. PyTorch has one of the same name,
# for matrices alone.
OPTIMIZERS.register_module("TimmMuon", module=Muon)


def build_optimizer(settings: dict[str, Any], groups: list[dict[str, Any]]) -> Optimizer:
    """The optimiser of a config, ``type`` and arguments, for parameter groups.

    Raises:
        HypvisionError: an argument, or a value of it, that the optimiser refuses.
    """
    try:
        return OPTIMIZERS.build(dict(settings, params=groups))
    except (TypeError, ValueError) as error:
        raise HypvisionError(f"optim_wrapper.optimizer of the config: {str(error).rstrip('.')}.") from error


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TimmParamGroups:
    """Builds an optimiser with timm's parameter groups.

    One-dimensional parameters (biases, norms, layer scales) and those that the model names in ``no_weight_decay()`` get
    no weight decay. With ``layer_decay`` the learning rate falls by that factor from one layer of the timm backbone to
    the one before it; what a task adds (heads, necks) has the full rate.

    With ``lr_mult`` parts of the model have a rate of their own, e.g. what fine-tuning adds to a pretrained network.

    Config: ``optim_wrapper=dict(constructor="TimmParamGroups", paramwise_cfg=dict(layer_decay=0.75), ...)``.

    Args:
        optim_wrapper_cfg: ``type`` and arguments of the wrapper, with ``optimizer``.
        paramwise_cfg: ``layer_decay`` in (0, 1], default none; ``lr_mult``, factors by the name of a module, e.g.
            ``{"backbone.mapper": 10.0}``.

    Raises:
        HypvisionError: an unknown key, ``layer_decay`` for a model without a timm backbone, or a name in ``lr_mult``
            that the model does not have.
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None):
        self.optim_wrapper_cfg = dict(optim_wrapper_cfg)
        self.optim_wrapper_cfg.setdefault("type", "OptimWrapper")
        self.optimizer_cfg = dict(self.optim_wrapper_cfg.pop("optimizer"))
        options = dict(paramwise_cfg or {})
        self.layer_decay = options.pop("layer_decay", None)
        self.lr_mult: dict[str, float] = dict(options.pop("lr_mult", None) or {})
        if options:
            raise HypvisionError(
                f"optim_wrapper.paramwise_cfg has {', '.join(map(repr, options))}, but TimmParamGroups knows "
                "'layer_decay' and 'lr_mult' alone. Correct the config."
            )

    def __call__(self, model: nn.Module) -> OptimWrapper:
        if is_model_wrapper(model):
            model = model.module
        groups = self._scaled(self._groups(model), model) if self.lr_mult else self._groups(model)
        if self.optimizer_cfg["type"] in ("TimmMuon", Muon):
            groups = _tables_apart(groups, model)
        optimizer = build_optimizer(self.optimizer_cfg, groups)
        return OPTIM_WRAPPERS.build(self.optim_wrapper_cfg, default_args=dict(optimizer=optimizer))

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        decay = self.optimizer_cfg.get("weight_decay", 0.0)
        if self.layer_decay is None:
            return param_groups_weight_decay(model, decay, no_weight_decay_list=_no_weight_decay(model))
        backbone = next((module for module in model.modules() if hasattr(module, "group_matcher")), None)
        if backbone is None:
            raise HypvisionError(
                "optim_wrapper.paramwise_cfg.layer_decay needs a timm model that groups its layers (one with "
                "'group_matcher'), which this config does not have. Remove 'layer_decay'."
            )
        base_lr = self.optimizer_cfg["lr"]
        groups = param_groups_layer_decay(
            backbone, decay, no_weight_decay_list=_no_weight_decay(backbone), layer_decay=self.layer_decay
        )
        for group in groups:
            # mmengine's schedulers scale each group's own rate, where timm's expect lr_scale.
            group["lr"] = base_lr * group.pop("lr_scale")
        inside = {id(parameter) for parameter in backbone.parameters()}
        rest = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in inside]
        # timm asks a model for its named_parameters() and for nothing else.
        return groups + param_groups_weight_decay(
            SimpleNamespace(named_parameters=lambda: rest), decay, no_weight_decay_list=_no_weight_decay(model)
        )

    def _scaled(self, groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
        """Each group cut into those of equal factor of the learning rate."""
        factors: dict[int, float] = {}
        for place, factor in self.lr_mult.items():
            inside = [p for name, p in model.named_parameters() if f"{name}.".startswith(f"{place}.")]
            if not inside:
                raise HypvisionError(
                    f"optim_wrapper.paramwise_cfg.lr_mult names '{place}', but the model has no parameter in a module "
                    f"of that name. It has {', '.join(name for name, _ in model.named_children())}, ... Correct it."
                )
            factors.update((id(p), factor) for p in inside)
        base, found = self.optimizer_cfg["lr"], []
        for group in groups:
            params = list(group["params"])
            for factor in sorted({factors.get(id(p), 1.0) for p in params}):
                part = [p for p in params if factors.get(id(p), 1.0) == factor]
                found.append({**group, "params": part, "lr": group.get("lr", base) * factor})
        return found


def _tables_apart(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """The groups with embeddings (of tokens, of positions) in groups of their own, which Muon steps by AdamW.

    Rows of a table are vectors of their own, most of them without a gradient: there is no matrix to orthogonalise.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    ends = ("positional_embedding", "pos_embed")
    tables |= {id(p) for name, p in model.named_parameters() if name.rpartition(".")[2] in ends}
    found = []
    for group in groups:
        for apart in (False, True):
            part = [p for p in group["params"] if (id(p) in tables) == apart]
            if part:
                found.append({**group, "params": part, **({"use_fallback": True} if apart else {})})
    return found


def _no_weight_decay(model: nn.Module) -> set[str]:
    """Names that any module inside exempts through ``no_weight_decay()``, made relative to ``model``."""
    names: set[str] = set()
    for prefix, module in model.named_modules():
        method = getattr(module, "no_weight_decay", None)
        if callable(method):
            names |= {f"{prefix}.{name}" if prefix else name for name in method()}
    return names


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Autocast to bfloat16 on any device, without loss scaling; mmengine's AmpOptimWrapper refuses to run on a CPU."""

    @contextmanager
    def optim_context(self, model: nn.Module):
        with super().optim_context(model), torch.autocast(get_device(), dtype=torch.bfloat16):
            yield


class _RiemannianClip:
    """``clip_grad=dict(max_norm=...)`` clips by :func:`hypvision.optim.clip_grad_norm_`, in which the gradients of
    points count by their Riemannian norms."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if getattr(self, "clip_func", None) is torch.nn.utils.clip_grad_norm_:
            self.clip_func = clip_grad_norm_


@OPTIM_WRAPPERS.register_module()
class RiemannianOptimWrapper(_RiemannianClip, OptimWrapper):
    """mmengine's wrapper, for models with manifold parameters: clips gradients by their Riemannian norm."""


@OPTIM_WRAPPERS.register_module()
class RiemannianAmpOptimWrapper(_RiemannianClip, AmpOptimWrapper):
    """The same with automatic mixed precision and loss scaling; needs a GPU, as mmengine's does."""
