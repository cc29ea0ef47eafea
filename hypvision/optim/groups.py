"""Parameter groups for models with points and learned curvatures."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch

from torch import nn

from hypvision.geometry import CurvatureParameter, Manifold, named_manifold_parameters
from hypvision.geometry.parameters import loose, mark
from hypvision.io import Plain

from .base import foreign_manifold_of


def param_groups(
    model: nn.Module,
    lr: float | None = None,
    weight_decay: float = 0.0,
    manifold_lr_scale: float = 1.0,
    manifold_weight_decay: float | None = None,
    curvature_lr: float | None = None,
    curvature_lr_scale: float = 1.0,
    no_weight_decay: str | Collection[str] = (),
) -> list[Plain]:
    """Return groups of a model's parameters for the optimisers: weights, weights without weight
    decay, points, curvatures.

    Biases, norms and other weights with one dimension get no weight decay, nor do the weights and
    points that are named by ``no_weight_decay`` or by the model (or a module inside it); curvatures
    never get any. Frozen parameters are left out, except points whose curvature is learned, because
    they must follow it.

        >>> groups = param_groups(model, lr=1e-3, weight_decay=0.05, curvature_lr=1e-4)
        >>> optimizer = RiemannianAdamW(groups, lr=1e-3)

    Args:
        model: the model; its manifold parameters are marked as such, in case a wrapper has taken
            their class.
        lr: base learning rate; it is needed if a scale is not 1.
        weight_decay: weight decay of the weights.
        manifold_lr_scale: learning rate of points, as a multiple of ``lr``.
        manifold_weight_decay: weight decay of points; None: ``weight_decay``.
        curvature_lr: learning rate of ``log c``; None: ``curvature_lr_scale * lr``.
        curvature_lr_scale: learning rate of ``log c``, as a multiple of ``lr``.
        no_weight_decay: names of parameters, or patterns with ``*``, besides those of
            :func:`exempt_names`.

    Returns:
        Groups, each with a ``name``: ``weights``, ``no_weight_decay``, ``points``,
        ``points_no_weight_decay`` (if other points have some), ``curvatures``; empty groups
        are left out.
    """
    named = (no_weight_decay,) if isinstance(no_weight_decay, str) else no_weight_decay
    exempt = {*named, *exempt_names(model)}
    points_lr = _scaled(lr, manifold_lr_scale)
    if curvature_lr is None:
        curvature_lr = _scaled(lr, curvature_lr_scale)
    points_decay = weight_decay if manifold_weight_decay is None else manifold_weight_decay
    options = {  # (learning rate, weight decay) of each group
        "weights": (lr, weight_decay),
        "no_weight_decay": (lr, 0.0),
        "points": (points_lr, points_decay),
        "points_no_weight_decay": (points_lr, 0.0),
        "curvatures": (curvature_lr, 0.0),
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in options}
    moving = _marked_points(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or id(parameter) in moving:
            spared = any(fnmatch(name, pattern) for pattern in exempt)
            members[_kind(parameter, spared, points_decay)].append(parameter)
    return [_group(name, members[name], *options[name]) for name in options if members[name]]


def _scaled(lr: float | None, scale: float) -> float | None:
    """Return a multiple of the base learning rate, or None without one, for which the optimiser's
    own rate counts."""
    if lr is None and scale != 1:
        raise ValueError(
            "manifold_lr_scale and curvature_lr_scale are multiples of lr. Give lr as well."
        )
    return None if lr is None else lr * scale


def _kind(parameter: nn.Parameter, spared: bool, points_decay: float) -> str:
    """Return the name of the group to which a parameter belongs."""
    if isinstance(parameter, CurvatureParameter):
        return "curvatures"
    ours = isinstance(getattr(parameter, "manifold", None), Manifold)
    if ours or foreign_manifold_of(parameter) is not None:
        return "points_no_weight_decay" if spared and points_decay else "points"
    return "no_weight_decay" if spared or parameter.dim() <= 1 else "weights"


def _group(name: str, params: list[nn.Parameter], lr: float | None, weight_decay: float) -> Plain:
    """Return a group; without a learning rate the optimiser's own counts."""
    group: Plain = {"name": name, "params": params, "weight_decay": weight_decay}
    if lr is not None:
        group["lr"] = lr
    return group


def _marked_points(model: nn.Module) -> set[int]:
    """Mark the manifold parameters of a model.

    Returns:
        The ids of the manifold parameters whose curvature is learned.

    Raises:
        ValueError: the model does not hold the manifold of a parameter.
    """
    known = {id(parameter) for parameter in model.parameters()}
    moving = set()
    for name, parameter, manifold in named_manifold_parameters(model):
        mark(parameter, manifold)
        curvatures = list(manifold.parameters())
        if any(c.requires_grad for c in curvatures):
            moving.add(id(parameter))
        if not known.issuperset(map(id, curvatures)):
            raise ValueError(loose(name, manifold))
    return moving


def exempt_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that the model, or any module inside it, exempts from
    weight decay through ``no_weight_decay()``, made relative to ``model``."""
    names: set[str] = set()
    for prefix, module in model.named_modules():
        method = getattr(module, "no_weight_decay", None)
        if callable(method):
            names |= {f"{prefix}.{name}" if prefix else name for name in method()}
    return names
