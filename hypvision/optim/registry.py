"""Registration of the optimisers in timm:
``timm.optim.create_optimizer_v2(model, "riemannianadamw", lr=1e-3)``."""

from __future__ import annotations

from timm.optim._optim_factory import OptimInfo, default_registry

from .adam import RiemannianAdam, RiemannianAdamW
from .sgd import RiemannianSGD


def register() -> None:
    """Enter the optimisers into timm's registry, unless they are there already."""
    known = set(default_registry.list_optimizers())
    for info in (
        OptimInfo(
            "riemanniansgd",
            RiemannianSGD,
            "Riemannian SGD for points on manifolds, with Nesterov momentum",
            has_eps=False,
            has_momentum=True,
            defaults={"nesterov": True},
        ),
        OptimInfo(
            "riemannianadam",
            RiemannianAdam,
            "Riemannian Adam for points on manifolds",
            has_betas=True,
        ),
        OptimInfo(
            "riemannianadamw",
            RiemannianAdamW,
            "Riemannian Adam with decoupled weight decay",
            has_betas=True,
        ),
    ):
        if info.name not in known:
            default_registry.register(info)
