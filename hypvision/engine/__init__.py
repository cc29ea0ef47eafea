"""Training and testing of every task from config files, on mmengine and nothing of mmcv.

Importing the package makes mmengine read and write checkpoints safely (:mod:`~hypvision.engine.checkpoint`) and
registers what configs may name: hooks, loops, optimisers, parameter groups.
"""

from hypvision.engine.mmengine_import import require_mmengine

require_mmengine()

from hypvision.engine import (  # noqa: E402 - after the check
    accumulation,
    checkpoint,
    hooks,
    loops,
    optim_wrappers,
    param_groups,
)

checkpoint.install()

__all__ = ["accumulation", "checkpoint", "hooks", "loops", "optim_wrappers", "param_groups"]
