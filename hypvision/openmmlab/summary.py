"""Segmenters and detectors of OpenMMLab for ``hypvision summary``; see :mod:`hypvision.inference.summary`."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from hypvision.inference.summary import Subject


def subject_of_model(model: nn.Module, shape: tuple[int, int, int]) -> Subject:
    """A segmenter or detector of OpenMMLab up to the outputs of its heads, on images of this shape (C, H, W).

    A detector of two stages looks at the regions that its own first stage proposes.
    """
    about = dict(img_shape=shape[1:], ori_shape=shape[1:], batch_input_shape=shape[1:], pad_shape=shape[1:])

    def run(images: Tensor) -> Any:
        samples = [BaseDataElement(metainfo=dict(about, scale_factor=(1.0, 1.0))) for _ in images]
        return model(images, samples, mode="tensor")

    return Subject(model.eval(), torch.randn(1, *shape), run)
