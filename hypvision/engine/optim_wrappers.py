"""Mixed precision without a GPU, and clipping by the Riemannian norm."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from hypvision.optim import clip_grad_norm_


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Autocast to bfloat16 on any device, without loss scaling; mmengine's AmpOptimWrapper refuses
    to run on a CPU."""

    @contextmanager
    def optim_context(self, model: nn.Module):
        with super().optim_context(model), torch.autocast(get_device(), dtype=torch.bfloat16):
            yield


class _RiemannianClip:
    """``clip_grad=dict(max_norm=...)`` clips by :func:`hypvision.optim.clip_grad_norm_`, in which
    the gradients of points count by their Riemannian norms."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if getattr(self, "clip_func", None) is torch.nn.utils.clip_grad_norm_:
            self.clip_func = clip_grad_norm_


@OPTIM_WRAPPERS.register_module()
class RiemannianOptimWrapper(_RiemannianClip, OptimWrapper):
    """mmengine's wrapper for manifold parameters: clips gradients by their Riemannian norm."""


@OPTIM_WRAPPERS.register_module()
class RiemannianAmpOptimWrapper(_RiemannianClip, AmpOptimWrapper):
    """The same with automatic mixed precision and loss scaling; needs a GPU, as mmengine's does."""
