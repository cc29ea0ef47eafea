"""The linear probe of a segmenter: logistic regression on the features of each patch, as
:mod:`hypvision.tasks.probe` has it for images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from hypvision.io import ensure
from hypvision.tasks.probe import LinearProbeHook, Probe, as_tested, choose, evaluating, fit_path

_IMAGES = 256  # at most so many images are read for the probe
_PATCHES = 8192  # and so many of their patches are fitted
_DECAYS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_STEPS = 40


@HOOKS.register_module()
class PatchProbeHook(LinearProbeHook):
    """Before the first step of a segmenter, put logistic regression on the features of its patches
    into its head, validate it and save it as ``probe.pth``; say at the end whether the training was
    better. The head must be one linear layer (mmseg's ``FCNHead`` with ``num_convs=0``)."""

    counted = "patches"
    metric = "mIoU"
    poor = ("aAcc",)

    def _wanted(self, model: Any) -> bool:
        head = model.decode_head
        ensure(
            isinstance(getattr(head, "convs", None), nn.Identity) and not head.concat_input,
            "PatchProbeHook needs a head that is one linear layer: dict(type='FCNHead', "
            "num_convs=0, concat_input=False, ...). Use such a head, or leave the hook out.",
        )
        return True

    def _head(self, model: Any) -> nn.Linear | nn.Conv2d:
        return model.decode_head.conv_seg

    def _fit(self, runner: Runner, model: Any) -> Probe:
        ensure(
            runner.val_loop is not None,
            "PatchProbeHook chooses its weight decay on validation data. Set val_dataloader, or "
            "leave the hook out.",
        )
        held_out = runner.val_dataloader.dataset
        plain = as_tested(runner.train_dataloader.dataset, held_out, "pipeline")
        x, y = patches(model, plain)
        scale = x.std(dim=0).clamp_min(1e-6)
        path = fit_path(x / scale, y, model.decode_head.num_classes, _DECAYS, steps=_STEPS)
        path = [(weight / scale, bias) for weight, bias in path]
        return choose(path, _DECAYS, patches(model, held_out))


@torch.no_grad()
def patches(model: Any, dataset: Any) -> tuple[Tensor, Tensor]:
    """Return features ``(N, D)`` that enter the head and labels ``(N,)`` of patches by chance, in
    equal numbers from each image, in float32 on the CPU; of many images those at equal steps."""
    apart = torch.Generator().manual_seed(0)
    each = -(-len(dataset) // _IMAGES)
    numbers = range(0, len(dataset), each)
    most = -(-_PATCHES // len(numbers))
    features = []
    labels = []
    with evaluating(model):
        for number in numbers:
            sample = dataset[number]
            batch = dict(inputs=[sample["inputs"]], data_samples=[sample["data_samples"]])
            batch = model.data_preprocessor(batch, False)
            (maps,) = model.decode_head._transform_inputs(model.extract_feat(batch["inputs"]))
            truth = sample["data_samples"].gt_sem_seg.data[None].float()
            label = (
                F.interpolate(truth, size=maps.shape[-2:], mode="nearest-exact")
                .flatten()
                .long()
                .cpu()
            )
            known = (label != model.decode_head.ignore_index).nonzero().flatten()
            taken = known[torch.randperm(len(known), generator=apart)[:most]]
            features.append(maps.flatten(1).T[taken.to(maps.device)].float().cpu())
            labels.append(label[taken])
    return torch.cat(features), torch.cat(labels)
