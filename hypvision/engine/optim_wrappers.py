"""Wrappers of optimisers: mixed precision without a GPU, and clipping by the Riemannian norm."""

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
    """A wrapper of an optimiser that runs the model in bfloat16 by autocast on any device, without
    loss scaling; mmengine's AmpOptimWrapper refuses to run on a CPU."""

    @contextmanager
    def optim_context(self, model: nn.Module):
        with super().optim_context(model), torch.autocast(get_device(), dtype=torch.bfloat16):
            yield


class _RiemannianClip:
    """Base class of wrappers whose ``clip_grad=dict(max_norm=...)`` clips by
    :func:`hypvision.optim.clip_grad_norm_`, which measures the gradients of points by their
    Riemannian norms."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if getattr(self, "clip_func", None) is torch.nn.utils.clip_grad_norm_:
            self.clip_func = clip_grad_norm_


@OPTIM_WRAPPERS.register_module()
class RiemannianOptimWrapper(_RiemannianClip, OptimWrapper):
    """mmengine's wrapper of optimisers, with gradients clipped by their Riemannian norm."""


@OPTIM_WRAPPERS.register_module()
class RiemannianAmpOptimWrapper(_RiemannianClip, AmpOptimWrapper):
    """mmengine's wrapper with automatic mixed precision and loss scaling, with gradients clipped by
    their Riemannian norm; it needs a GPU, as mmengine's does."""
