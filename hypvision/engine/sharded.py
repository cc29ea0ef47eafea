"""Train models that are too large for one GPU by fully sharded data parallelism with mmengine's
Runner.

A config with ``runner_type = "ShardedRunner"`` trains on several processes with weights, gradients
and optimiser states sharded among them (PyTorch's ``fully_shard``). Its checkpoints hold full
tensors like any other: a training can resume from them with another number of processes, and
``hypvision test`` reads them.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from mmengine.device import get_device
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from hypvision.io import Plain
from hypvision.optim import unsharded_parameters


def whole_tensor(value: Any) -> Any:
    """Return the full tensor of a sharded one, in a collective call; return other values
    unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def cut(value: Tensor, like: DTensor) -> DTensor:
    """Return a full tensor sharded like the parameter ``like``."""
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _gathered(content: Plain) -> Plain:
    """Return the state dict of an optimiser with its sharded tensors gathered on the CPU."""
    state = {number: dict(entry) for number, entry in content["state"].items()}
    for entry in state.values():
        for name, value in entry.items():
            if isinstance(value, DTensor):
                entry[name] = value.full_tensor().cpu()
    return {**content, "state": state}


def _cut_states(optimizer: Optimizer, state: dict[int, Plain]) -> None:
    """Shard the full tensors in an optimiser's ``state`` like their parameters, in place."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, entry in state.items():
        parameter = parameters[number]
        for name, value in entry.items():
            if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.dim():
                entry[name] = cut(value, parameter)


class _CutHook(Hook):
    """Shard the full tensors of a loaded checkpoint like the model and its optimiser."""

    # Hooks that rename weights must run first.
    priority = "LOWEST"

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        own = runner.model.state_dict()
        given = checkpoint.get("state_dict", checkpoint)
        for name, value in own.items():
            if isinstance(value, DTensor) and name in given:
                given[name] = cut(given[name], value)
        # Without a training state there are weights alone to shard.
        if not runner._resume or "optimizer" not in checkpoint:
            return
        _cut_states(runner.optim_wrapper.optimizer, checkpoint["optimizer"]["state"])


@RUNNERS.register_module()
class ShardedRunner(Runner):
    """mmengine's Runner with a sharded model; with one process, the plain Runner.

    If the model has a method ``blocks()``, the modules that it returns are gathered one at a time
    in forward and backward. ``model_wrapper_cfg`` is ignored.
    """

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Shard ``model`` and return it; all processes start from the weights of the first
        process."""
        if not self.distributed:
            return super().wrap_model(model_wrapper_cfg, model)
        init_weights = getattr(model, "init_weights", None)
        if callable(init_weights):
            init_weights()
        model = model.to(get_device())
        for tensor in model.state_dict().values():
            broadcast(tensor)
        ignored = unsharded_parameters(model)
        blocks = getattr(model, "blocks", None)
        for block in blocks() if callable(blocks) else ():
            fully_shard(block, ignored_params=ignored)
        fully_shard(model, ignored_params=ignored)
        return model

    def _init_model_weights(self) -> None:
        # With several processes, the weights have been initialised before sharding.
        if not self.distributed:
            super()._init_model_weights()

    def register_hooks(
        self, default_hooks: dict | None = None, custom_hooks: list | None = None
    ) -> None:
        """Register the config's hooks and the hook that shards loaded checkpoints."""
        super().register_hooks(default_hooks, custom_hooks)
        if self.distributed:
            self.register_hook(_CutHook())

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Wrap the optimiser as the Runner does, but log the gradient norm over all shards."""
        wrapper = super().build_optim_wrapper(optim_wrapper)
        if self.distributed and hasattr(wrapper, "clip_func"):
            clip = wrapper.clip_func
            wrapper.clip_func = lambda *args, **options: whole_tensor(clip(*args, **options))
        return wrapper

    def save_checkpoint(self, *args: Any, save_optimizer: bool = True, **options: Any) -> None:
        """Write a checkpoint of the whole model: all processes gather tensors, and the first one
        writes."""
        if not self.distributed:
            super().save_checkpoint(*args, save_optimizer=save_optimizer, **options)
            return
        weights = self.model.state_dict()
        for name, value in weights.items():
            weights[name] = whole_tensor(value)
        wrapper = self.optim_wrapper
        states = _gathered(wrapper.state_dict()) if save_optimizer else {}
        with (
            patch.object(self.model, "state_dict", lambda: weights),
            patch.object(wrapper, "state_dict", lambda: states),
        ):
            super().save_checkpoint(*args, save_optimizer=save_optimizer, **options)
