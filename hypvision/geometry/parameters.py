"""Parameters that hold points of a manifold."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    _WrappedHook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hypvision.io import Plain

from .euclidean import Euclidean
from .manifold import Manifold, whose
from .product import Product


class ManifoldParameter(nn.Parameter):
    """A parameter whose last dimension holds points of a manifold, for the optimisers of
    :mod:`hypvision.optim`.

    It computes like any tensor. The manifold travels with copies and pickles, and stays when a
    module is cast, moved or loaded; state dicts hold plain tensors. Wrappers that replace
    parameters by their own (FSDP) lose the class, but :func:`named_manifold_parameters` still finds
    the points if their layer names them in ``manifold_parameters``.

    Optimisers of other packages step through flat space, so that points leave the manifold. The
    first step of such an optimiser warns of it. The points are not projected back: a projected step
    would be another method than the one that was chosen, with steps of the wrong length, and the
    Riemannian optimisers have the same interface.

    A learned curvature is a parameter of the manifold, which is a module: the manifold must also be
    assigned to a module of the model. Otherwise ``state_dict()`` would lose the curvature, and
    raises RuntimeError.

    Args:
        data: points ``(..., d)``; ``manifold.projx`` moves other vectors onto the manifold.
        manifold: the manifold on which the points lie.
        requires_grad: whether the points are trained.

    Raises:
        TypeError: ``manifold`` is not a manifold, or ``data`` is not a floating point tensor.
        ValueError: ``data`` does not end in the coordinates of a point; or it is not on the
            manifold, which is checked if the manifold has ``check=True``.
    """

    manifold: Manifold

    def __new__(
        cls, data: Tensor, manifold: Manifold, requires_grad: bool = True
    ) -> ManifoldParameter:
        if not isinstance(manifold, Manifold):
            raise TypeError(
                "manifold must be a manifold object of hypvision.geometry such as Lorentz(1.0), "
                f"got {whose(manifold)}. For parameters that are not points take "
                "torch.nn.Parameter, for points on geoopt's manifolds geoopt.ManifoldParameter: "
                "the optimisers take them, too."
            )
        if not isinstance(data, Tensor) or not data.is_floating_point():
            found = data.dtype if isinstance(data, Tensor) else type(data).__name__
            raise TypeError(f"data must be a tensor of floating point numbers, got {found}.")
        _check_coordinates(data, manifold)
        if manifold.check and not data.is_meta:
            manifold.check_point(data.detach(), "data")
        return _rebuild(data, manifold, requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> ManifoldParameter:
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = _rebuild(data, copy.deepcopy(self.manifold, memo), self.requires_grad)
        out: ManifoldParameter = memo[id(self)]
        return out

    def module_load(self, other: Tensor, assign: bool = False) -> ManifoldParameter:
        """Return the parameter that replaces this one when weights are loaded by swapping
        tensors."""
        return _rebuild(super().module_load(other, assign), self.manifold)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _rebuild, (self.data, self.manifold, self.requires_grad)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"ManifoldParameter on {self.manifold} containing:\n{self.data!r}"


def _check_coordinates(data: Tensor, manifold: Manifold) -> None:
    """Raise ValueError if the last dimension of ``data`` cannot hold points of the manifold."""
    product = isinstance(manifold, Product)
    least = sum(manifold.sizes) if isinstance(manifold, Product) else 1 + manifold.extra
    size = data.shape[-1] if data.dim() else 0
    if size < least or (product and size > least):
        raise ValueError(
            f"data must end in the {'' if product else 'at least '}{least} coordinates of a "
            f"point of {manifold}, got the shape {tuple(data.shape)}."
        )


def _rebuild(data: Tensor, manifold: Manifold, requires_grad: bool = True) -> ManifoldParameter:
    """Return a manifold parameter without checking its points: they are a copy, or are loaded
    before their curvature."""
    _watch()
    out: ManifoldParameter = torch.Tensor._make_subclass(ManifoldParameter, data, requires_grad)
    out.manifold = manifold
    return out


# PyTorch calls these hooks for every module, so they are registered only when the first manifold
# parameter is made.


@functools.cache
def _watch() -> None:
    register_module_parameter_registration_hook(_registered)
    register_module_module_registration_hook(_adopted)
    register_optimizer_step_pre_hook(_stepping)


def _registered(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Install, when a module registers a manifold parameter, the hooks that keep its points when
    the module is cast or loaded, and that make sure that its learned curvature is saved."""
    hooks = module._load_state_dict_pre_hooks.values()
    if isinstance(parameter, ManifoldParameter) and not any(
        getattr(hook, "hook", None) is _loading for hook in hooks
    ):
        # PyTorch has no hook for ``_apply``. This wrapper keeps only a weak reference to the
        # module.
        module._apply = _WrappedHook(_applied, module)  # type: ignore[method-assign]
        module.register_load_state_dict_pre_hook(_loading)
        module.register_state_dict_post_hook(_saved)


def _applied(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Run ``_apply`` of a module that is cast or moved, and mark its manifold parameters anew,
    because PyTorch may have replaced them by plain ones."""
    points = {
        name: p.manifold
        for name, p in module._parameters.items()
        if isinstance(p, ManifoldParameter)
    }
    type(module)._apply(module, fn, recurse)
    for name, manifold in points.items():
        parameter = module._parameters[name]
        if parameter is not None:
            mark(parameter, manifold)
    return module


def _loading(
    module: nn.Module,
    state_dict: Plain,
    prefix: str,
    metadata: Plain,
    *rest: object,
) -> None:
    """Replace tensors of a state dict by manifold parameters before
    ``load_state_dict(assign=True)`` puts them in the place of a module's manifold parameters."""
    if metadata.get("assign_to_params_buffers"):
        for name, parameter in module._parameters.items():
            value: Any = state_dict.get(prefix + name)
            is_tensor = type(value) in (Tensor, nn.Parameter)
            # Tensors of another shape are left for PyTorch, which raises an error.
            if (
                isinstance(parameter, ManifoldParameter)
                and is_tensor
                and value.shape == parameter.shape
            ):
                state_dict[prefix + name] = _rebuild(value.detach(), parameter.manifold)


def _saved(module: nn.Module, state_dict: Plain, prefix: str, metadata: Plain) -> None:
    """Raise RuntimeError if ``state_dict()`` would lose a learned curvature because only a
    parameter, and no module, refers to its manifold."""
    for name, parameter in module._parameters.items():
        manifold = parameter.manifold if isinstance(parameter, ManifoldParameter) else None
        if (
            manifold is not None
            and not manifold.registered
            and any(c.requires_grad for c in manifold.parameters())
        ):
            raise RuntimeError(loose(prefix + name, manifold))


# by the class that averages the weights of its ``module``: the name of the method that updates the
# average
_AVERAGES = {"AveragedModel": "update_parameters", "ModelEmaV2": "update", "ModelEmaV3": "update"}


def _adopted(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    """Wrap the update method of torch's and timm's averages of weights, when they take their
    module, so that the first update looks for points."""
    method = _AVERAGES.get(type(module).__name__)
    if method is not None and name == "module" and submodule is not None:
        # A strong reference, since nothing else may hold the average while it is updated.
        setattr(module, method, functools.partial(_averaging, module))


def _averaging(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Run the first update of an average of weights; warn if it averages the coordinates of
    points."""
    method = _AVERAGES[type(module).__name__]
    module.__dict__.pop(method)
    function = getattr(module, "multi_avg_fn", None)
    points = [name for name, _, manifold in named_manifold_parameters(module)
              if not isinstance(manifold, Euclidean)]  # fmt: skip
    if points and not getattr(function, "keeps_points", False):
        warnings.warn(
            f"{type(module).__name__} averages the coordinates of points, which so leave their "
            f"manifolds: {', '.join(points[:5])}. Take AveragedModel(model, "
            "multi_avg_fn=points_avg_fn(model, decay)), or with_points(ModelEmaV3(model)), of "
            "hypvision.optim.",
            stacklevel=3,
        )
    getattr(module, method)(*args, **kwargs)


def _described(manifold: Manifold) -> str:
    return f"{type(manifold).__name__}({manifold.extra_repr()})"


def loose(name: str, manifold: Manifold) -> str:
    """Return the error message for a learned manifold that no module holds, only the parameter
    called ``name``."""
    return (
        f"The points '{name}' lie on {_described(manifold)}, whose curvature is learned, but no "
        "module of the model holds the manifold, so that the curvature is missing among the "
        "model's parameters and in its state dict. Assign the manifold to the module of the "
        "points: self.manifold = manifold."
    )


# for each optimiser that was checked, the number of its parameter groups at that time
_seen: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()


def _stepping(optimizer: Optimizer, args: tuple[Any, ...], kwargs: Plain) -> None:
    """Warn, before the first step of any optimiser, if it has parameters that hold points and
    ignores their manifolds, or lacks their learned curvatures."""
    if torch.compiler.is_compiling() or _seen.get(optimizer) == len(optimizer.param_groups):
        return
    _seen[optimizer] = len(optimizer.param_groups)
    mark_kept()
    looks_ahead = any("lookahead_alpha" in group for group in optimizer.param_groups)
    # ZeroRedundancyOptimizer steps by its ``optim``, which has this process's parameters.
    stepping = getattr(optimizer, "optim", optimizer)
    if getattr(stepping, "keeps_points", False) and not looks_ahead:
        if stepping is optimizer:
            _warn_of_curvatures(optimizer)
        return
    _warn_of_flat_steps(optimizer, "Lookahead" if looks_ahead else whose(optimizer))


def _warn_of_flat_steps(optimizer: Optimizer, name: str) -> None:
    """Warn if an optimiser that ignores manifolds, called ``name``, has points."""
    found = [place for group in optimizer.param_groups for place in _points_of(group)]
    if found:
        warnings.warn(
            f"{name} steps through flat space, so that these parameters leave their manifolds: "
            f"{_listed(found)}. Take RiemannianAdamW, RiemannianAdam or RiemannianSGD of "
            "hypvision.optim, which are AdamW, Adam and SGD for all other parameters (timm's "
            "factory and configs know their names); or bring the points back after every step: "
            "parameter.data = manifold.projx(parameter.data).",
            stacklevel=5,
        )


def _warn_of_curvatures(optimizer: Optimizer) -> None:
    """Warn if an optimiser has points whose curvature is learned, but not by it: they could not
    follow a change."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def lacks(manifold: Manifold) -> bool:
        return any(c.requires_grad and id(c) not in own for c in manifold.parameters())

    found = [place for group in optimizer.param_groups for place in _points_of(group, lacks)]
    if found:
        warnings.warn(
            f"{whose(optimizer)} has points whose learned curvature is not among its parameters: "
            f"{_listed(found)}. They leave their manifolds when another optimiser changes it, or "
            "ZeroRedundancyOptimizer in another process. Give the curvature (manifold.log_c) to "
            "the same optimiser; shard by fully_shard instead of ZeroRedundancyOptimizer; or, if "
            "it is not trained, freeze it: manifold.log_c.requires_grad_(False).",
            stacklevel=5,
        )


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - 5} more" * (len(places) > 5)
    return ", ".join(places[:5]) + more


def _points_of(
    group: Plain, chosen: Callable[[Manifold], bool] = lambda manifold: True
) -> Iterator[str]:
    """Yield a description (name, shape, manifold) of each trained parameter of a group that holds
    points of a ``chosen`` manifold."""
    names = group.get("param_names") or itertools.repeat("one")
    for name, parameter in zip(names, group["params"]):
        manifold = getattr(parameter, "manifold", None)
        if not isinstance(manifold, Manifold) or isinstance(manifold, Euclidean):
            continue
        if parameter.requires_grad and chosen(manifold):
            yield f"{name} of shape {tuple(parameter.shape)} on {_described(manifold)}"


def mark(parameter: nn.Parameter, manifold: Manifold) -> None:
    """Turn a plain parameter into a manifold parameter, in place; parameters of other classes (of
    wrappers) keep their class and get the ``manifold``."""
    if type(parameter) is nn.Parameter:
        parameter.__class__ = ManifoldParameter
    parameter.manifold = manifold  # type: ignore[attr-defined]


# the modules whose points a wrapper may replace; each notes them itself, so that copies know them
_kept: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def keep_manifolds(model: nn.Module) -> None:
    """Note which parameters of a model hold points, by module and name, because ``fully_shard``
    replaces parameters by DTensors without a manifold."""
    for name, parameter, manifold in named_manifold_parameters(model):
        place, _, last = name.rpartition(".")
        module = model.get_submodule(place)
        module.__dict__.setdefault("_kept_points", {})[last] = (manifold, parameter.shape)
        _kept.add(module)


def mark_kept(modules: Iterable[nn.Module] | None = None) -> None:
    """Mark the DTensors that now stand where :func:`keep_manifolds` saw points, in some modules, or
    in all that it saw."""
    for module in list(_kept) if modules is None else modules:
        for name, (manifold, shape) in module.__dict__.get("_kept_points", {}).items():
            parameter = module._parameters.get(name)
            if parameter is None or not hasattr(parameter, "placements"):
                continue
            if parameter.shape == shape and getattr(parameter, "manifold", None) is None:
                mark(parameter, manifold)


def named_manifold_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Manifold]]:
    """Yield the name, the parameter and the manifold of every parameter of a model that holds
    points, each once.

    A parameter holds points if it is a :class:`ManifoldParameter`, or if its layer lists it in
    ``manifold_parameters`` and has a ``manifold``.
    """
    mark_kept(model.modules())
    seen = set()
    for prefix, module in model.named_modules():
        listed = getattr(module, "manifold_parameters", ())
        for name, parameter in module._parameters.items():
            if parameter is None or parameter in seen:
                continue
            manifold = getattr(parameter, "manifold", None)
            if manifold is None and name in listed:
                manifold = module.manifold
            if isinstance(manifold, Manifold):
                seen.add(parameter)
                yield f"{prefix}.{name}" if prefix else name, parameter, manifold
