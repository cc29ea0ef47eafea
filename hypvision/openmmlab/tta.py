"""Test-time augmentation (``--tta``) for detectors: merge the boxes and masks of several views of
an image.

mmdet merges the boxes of views, but not their masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.ops import batched_nms
from mmdet.structures.bbox import bbox_flip
from mmengine.model import BaseTTAModel
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor

from hypvision.io import HypvisionError, Plain

NMS = dict(nms=dict(type="nms", iou_threshold=0.5), max_per_img=100)


def _unflip(instances: InstanceData, meta: Plain) -> tuple[Tensor, Tensor | None]:
    """Return boxes ``(N, 4)`` and masks ``(N, H, W)`` (None if there are none) as they lie in the
    unflipped image."""
    boxes = instances.bboxes
    masks = instances.get("masks")
    if masks is not None:
        masks = torch.as_tensor(masks)
    if meta.get("flip"):
        if meta.get("flip_direction", "horizontal") != "horizontal":
            raise HypvisionError(
                f"tta_pipeline: views are flipped {meta['flip_direction']}. Use horizontal flips."
            )
        boxes = bbox_flip(boxes, meta["ori_shape"])
        masks = None if masks is None else masks.flip(-1)
    return boxes, masks


@MODELS.register_module()
class MirrorDetector(BaseTTAModel):
    """A detector that sees each image in several views and keeps the best of all boxes, with their
    masks.

    The boxes of all views are merged and reduced by non-maximum suppression within each class.

    Args:
        tta_cfg: ``nms`` (as in the ``test_cfg`` of mmdet's heads) and ``max_per_img``; None: an IoU
            of 0.5, and 100 boxes.
        module, data_preprocessor: see :class:`mmengine.model.BaseTTAModel`.
    """

    def __init__(self, module: Any, tta_cfg: Plain | None = None, data_preprocessor: Any = None):
        super().__init__(module, data_preprocessor)
        self.tta_cfg = {**NMS, **(tta_cfg or {})}

    def merge_preds(self, data_samples_list: Sequence[Sequence[Any]]) -> list[Any]:
        """Return one sample for each image, merged from those of its views (the first is
        unflipped)."""
        return [self._merge(samples) for samples in data_samples_list]

    def _merge(self, samples: Sequence[Any]) -> Any:
        views = [_unflip(sample.pred_instances, sample.metainfo) for sample in samples]
        boxes = torch.cat([boxes for boxes, _ in views])
        scores = torch.cat([sample.pred_instances.scores for sample in samples])
        labels = torch.cat([sample.pred_instances.labels for sample in samples])
        merged = samples[0]
        if len(boxes):
            kept_boxes, keep = batched_nms(boxes, scores, labels, dict(self.tta_cfg["nms"]))
            limit = self.tta_cfg["max_per_img"]
            kept_boxes = kept_boxes[:limit]
            keep = keep[:limit]
            found = InstanceData(
                bboxes=kept_boxes[:, :4], scores=kept_boxes[:, 4], labels=labels[keep]
            )
            masks = [masks for _, masks in views if masks is not None]
            if masks:
                found.masks = torch.cat(masks)[keep.to(masks[0].device)]
            merged.pred_instances = found
        return merged
