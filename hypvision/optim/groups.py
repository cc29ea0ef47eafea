"""Parameter groups for models with points and learned curvatures."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch
from typing import Any

from torch import nn

from hypvision.geometry import CurvatureParameter, named_manifold_parameters
from hypvision.geometry.parameters import loose, mark

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
) -> list[dict[str, Any]]:
    """Groups for the optimisers: weights, those without weight decay, points, curvatures.

    Biases, norms and other weights with one dimension, and the weights and points that
    ``no_weight_decay`` or the model (also by a module inside it) names, get no weight decay;
    curvatures never do. Frozen parameters are left out, but for points whose curvature is learned:
    they must follow it.

        >>> groups = param_groups(model, lr=1e-3, weight_decay=0.05, curvature_lr=1e-4)
        >>> optimizer = RiemannianAdamW(groups, lr=1e-3)

    Args:
        model: the model; its manifold parameters are marked, should a wrapper have taken their
            class.
        lr: base learning rate; needed where a scale is not 1.
        weight_decay: of the weights.
        manifold_lr_scale: learning rate of points, as a multiple of ``lr``.
        manifold_weight_decay: of points; default: ``weight_decay``.
        curvature_lr: learning rate of ``log c``; default: ``curvature_lr_scale * lr``.
        curvature_lr_scale: as a multiple of ``lr``.
        no_weight_decay: names, or patterns with ``*``, beyond those of :func:`exempt_names`.

    Returns:
        Groups, each with a ``name``: ``weights``, ``no_weight_decay``, ``points``,
        ``points_no_weight_decay`` (where the other points have some), ``curvatures``; empty ones
        are left out.
    """
    if lr is None and (manifold_lr_scale != 1 or curvature_lr_scale != 1):
        raise ValueError(
            "manifold_lr_scale and curvature_lr_scale are multiples of lr: give lr as well."
        )
    named = (no_weight_decay,) if isinstance(no_weight_decay, str) else no_weight_decay
    exempt = {*named, *exempt_names(model)}
    points = set()
    moving = set()
    known = {id(parameter) for parameter in model.parameters()}
    for name, parameter, manifold in named_manifold_parameters(model):
        mark(parameter, manifold)
        points.add(id(parameter))
        if any(c.requires_grad for c in manifold.parameters()):
            moving.add(id(parameter))
        if not known.issuperset(map(id, manifold.parameters())):
            raise ValueError(loose(name, manifold))
    if curvature_lr is None and lr is not None:
        curvature_lr = lr * curvature_lr_scale
    points_decay = weight_decay if manifold_weight_decay is None else manifold_weight_decay
    options = {  # (learning rate, weight decay) of each group
        "weights": (lr, weight_decay),
        "no_weight_decay": (lr, 0.0),
        "points": (None if lr is None else lr * manifold_lr_scale, points_decay),
        "points_no_weight_decay": (None if lr is None else lr * manifold_lr_scale, 0.0),
        "curvatures": (curvature_lr, 0.0),
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in options}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and id(parameter) not in moving:
            continue
        spared = any(name == p or fnmatch(name, p) for p in exempt)
        if id(parameter) in points or foreign_manifold_of(parameter) is not None:
            kind = "points_no_weight_decay" if spared and points_decay else "points"
        elif isinstance(parameter, CurvatureParameter):
            kind = "curvatures"
        elif parameter.dim() <= 1 or spared:
            kind = "no_weight_decay"
        else:
            kind = "weights"
        members[kind].append(parameter)
    groups = []
    for name, (rate, decay) in options.items():
        if members[name]:
            groups.append({"name": name, "params": members[name], "weight_decay": decay})
            if rate is not None:
                groups[-1]["lr"] = rate
    return groups


def exempt_names(model: nn.Module) -> set[str]:
    """Names that the model or any module inside exempts from weight decay through
    ``no_weight_decay()``, made relative to ``model``."""
    names: set[str] = set()
    for prefix, module in model.named_modules():
        method = getattr(module, "no_weight_decay", None)
        if callable(method):
            names |= {f"{prefix}.{name}" if prefix else name for name in method()}
    return names
