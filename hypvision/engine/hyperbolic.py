"""Training of classifiers with points and learned curvatures: parameter groups, curvature log, calibration.

Configs import this module by ``custom_imports``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler import MultiStepLR
from mmengine.registry import HOOKS, METRICS, OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, PARAM_SCHEDULERS
from mmengine.runner import Runner
from torch import nn

from hypvision.engine import optim
from hypvision.errors import HypvisionError
from hypvision.geometry import CurvatureParameter
from hypvision.optim import param_groups

__all__ = ["CalibrationError", "CurvatureHook", "GroupMultiStepLR", "RiemannianParamGroups"]

OPTIONS = ("manifold_lr_scale", "manifold_weight_decay", "curvature_lr", "curvature_lr_scale", "decay_all")


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class RiemannianParamGroups:
    """Builds an optimiser with the groups of :func:`hypvision.optim.param_groups`.

    Config: ``optim_wrapper=dict(constructor="RiemannianParamGroups", optimizer=dict(type="RiemannianSGD", lr=0.1, ...),
    paramwise_cfg=dict(manifold_lr_scale=0.2, curvature_lr=0.01))``.

    Args:
        optim_wrapper_cfg: ``type`` and arguments of the wrapper, with ``optimizer``.
        paramwise_cfg: ``manifold_lr_scale``, ``manifold_weight_decay``, ``curvature_lr``, ``curvature_lr_scale``; and
            ``decay_all`` (False): biases, norms and other parameters without weight decay get it, too, as in the
            official code of HCNN. Curvatures never do.

    Raises:
        HypvisionError: an unknown key, or a value that the optimiser refuses.
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None):
        self.optim_wrapper_cfg = dict(optim_wrapper_cfg)
        self.optim_wrapper_cfg.setdefault("type", "OptimWrapper")
        self.optimizer_cfg = dict(self.optim_wrapper_cfg.pop("optimizer"))
        self.options = dict(paramwise_cfg or {})
        unknown = sorted(set(self.options) - set(OPTIONS))
        if unknown:
            raise HypvisionError(
                f"optim_wrapper.paramwise_cfg has {', '.join(map(repr, unknown))}, but RiemannianParamGroups knows "
                f"{', '.join(OPTIONS)}. Correct the config."
            )

    def __call__(self, model: nn.Module) -> OptimWrapper:
        if is_model_wrapper(model):
            model = model.module
        rate, decay = self.optimizer_cfg["lr"], self.optimizer_cfg.get("weight_decay", 0.0)
        options = dict(self.options)
        decay_all = options.pop("decay_all", False)
        groups = param_groups(model, rate, decay, **options)
        for group in groups:
            if decay_all and group["name"] == "no_weight_decay":
                group["weight_decay"] = decay
        optimizer = optim.build_optimizer(self.optimizer_cfg, groups)
        return OPTIM_WRAPPERS.build(self.optim_wrapper_cfg, default_args=dict(optimizer=optimizer))


@PARAM_SCHEDULERS.register_module()
class GroupMultiStepLR(MultiStepLR):
    """mmengine's ``MultiStepLR`` for a part of the parameter groups.

    In the recipe of HCNN the points, whose rate is that of the weights divided by 5, leave out the first of its drops.

    Args:
        optimizer: the optimiser or its wrapper; its groups have a ``name``.
        leave_out: names of groups that keep their rate. A group may be absent: not every model has points.
        args, kwargs: those of ``MultiStepLR``: ``milestones``, ``gamma``, ...

    Raises:
        HypvisionError: the groups have no names.
    """

    def __init__(self, optimizer: Any, *args: Any, leave_out: Sequence[str] = (), **kwargs: Any):
        self.leave_out = tuple(leave_out)
        # not all: mmengine's wrapper adds a group without parameters, for the rate in the log
        if self.leave_out and not any("name" in group for group in optimizer.param_groups):
            raise HypvisionError(
                "param_scheduler has 'leave_out', but the parameter groups of the optimiser have no names. Set "
                "optim_wrapper.constructor to RiemannianParamGroups."
            )
        super().__init__(optimizer, *args, **kwargs)

    def _get_value(self) -> list[float]:
        pairs = zip(super()._get_value(), self.optimizer.param_groups)
        return [g[self.param_name] if g.get("name") in self.leave_out else value for value, g in pairs]


@HOOKS.register_module()
class CurvatureHook(Hook):
    """Logs the learned curvatures ``c`` after every epoch, as ``curvature/NAME``."""

    def after_train_epoch(self, runner: Runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        found = {
            name.removesuffix(".log_c"): parameter.detach().exp().item()
            for name, parameter in model.named_parameters()
            if isinstance(parameter, CurvatureParameter)
        }
        for name, value in found.items():
            runner.message_hub.update_scalar(f"train/curvature/{name}", value)
        if found:
            runner.logger.info("Curvature c: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))


@METRICS.register_module()
class CalibrationError(BaseMetric):
    """Expected calibration error in percent (Naeini et al., AAAI 2015), as ``ece``.

    The mean over all images of the gap between confidence and accuracy in the bin of their confidence.

    Args:
        bins: number of bins of equal width.
        collect_device, prefix, collect_dir: see :class:`mmengine.evaluator.BaseMetric`.

    Raises:
        ValueError: ``bins`` is not positive.
    """

    default_prefix = ""

    def __init__(self, bins: int = 15, **kwargs: Any):
        super().__init__(**kwargs)
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}.")
        self.bins = bins

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep confidence and success; ``data_samples`` comes from :class:`~hypvision.tasks.ImageClassifier`."""
        for sample in data_samples:
            confidence, best = sample["scores"].max(0)
            self.results.append((confidence.item(), best.item() == sample["label"]))

    def compute_metrics(self, results: list[tuple[float, bool]]) -> dict[str, float]:
        """The error of ``(confidence, right)`` of all images."""
        confidence, right = torch.tensor(results, dtype=torch.float64).unbind(1)
        place = (confidence.nan_to_num(0.0) * self.bins).long().clamp(max=self.bins - 1)
        gaps = torch.zeros(self.bins, dtype=torch.float64).index_add_(0, place, right - confidence)
        return {"ece": 100.0 * gaps.abs().sum().item() / len(results)}
