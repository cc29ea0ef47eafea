"""Support of fully sharded data parallelism for models with learned curvatures."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from hypvision.geometry import CurvatureParameter, named_manifold_parameters
from hypvision.geometry.parameters import keep_manifolds


def unsharded_parameters(
    model: nn.Module, group: dist.ProcessGroup | None = None
) -> set[nn.Parameter]:
    """Return the parameters that ``fully_shard`` must leave alone, after hooks on them that average
    their gradients over the processes.

    FSDP cannot shard a parameter without dimensions, and would split a single point (``beta`` of a
    batch norm). It does not average the gradients of ignored parameters, hence the hooks.

        >>> fully_shard(model, ignored_params=unsharded_parameters(model))

    The optimisers of this package shard momenta like their points, which distributed checkpoints
    (:mod:`torch.distributed.checkpoint`) need.

    Sharding replaces parameters by others without a manifold. Which ones hold points is remembered
    here, so that optimisers know them afterwards.

    Args:
        model: the model, before it is sharded.
        group: the processes over which gradients are averaged; None: all.

    Returns:
        The learned curvatures of the model, and its manifold parameters with one dimension.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "unsharded_parameters needs torch.distributed.init_process_group() to have been called."
        )

    def average(parameter: Tensor) -> None:
        assert parameter.grad is not None  # this hook runs after autograd has added the gradient
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    keep_manifolds(model)
    found: set[nn.Parameter] = {p for p in model.parameters() if isinstance(p, CurvatureParameter)}
    found |= {p for _, p, _ in named_manifold_parameters(model) if p.dim() == 1}
    for parameter in found:
        parameter.register_post_accumulate_grad_hook(average)
    return found
