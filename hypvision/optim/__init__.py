"""Riemannian optimisers, parameter groups and gradient clipping."""

from .adam import RiemannianAdam, RiemannianAdamW
from .clip import clip_grad_norm_, get_total_norm
from .groups import param_groups
from .registry import register
from .sgd import RiemannianSGD
from .sharding import unsharded_parameters

__all__ = [
    "RiemannianAdam", "RiemannianAdamW", "RiemannianSGD", "clip_grad_norm_", "get_total_norm",
    "param_groups", "unsharded_parameters",
]  # fmt: skip

register()
