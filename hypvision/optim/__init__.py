"""Riemannian optimisers, parameter groups and gradient clipping."""

from .adam import RiemannianAdam, RiemannianAdamW
from .averages import averaging_points, points_avg_fn, with_points
from .clip import clip_grad_norm_, get_total_norm
from .groups import param_groups
from .registry import register
from .sgd import RiemannianSGD
from .sharding import unsharded_parameters

__all__ = [
    "RiemannianAdam", "RiemannianAdamW", "RiemannianSGD", "averaging_points",
    "clip_grad_norm_", "get_total_norm", "param_groups", "points_avg_fn", "unsharded_parameters",
    "with_points",
]  # fmt: skip

register()
