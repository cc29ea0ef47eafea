"""Test-time augmentation by mirror images, for any segmenter or detector (``--tta``).

mmseg and mmdet describe the augmented views in a second pipeline, which most configs lack, and mmdet merges boxes but
no masks. Here the views follow from the test pipeline, and :class:`MirrorDetector` merges boxes and masks alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.ops import batched_nms
from mmengine.model import BaseTTAModel
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor

from hypvision.errors import HypvisionError

__all__ = ["MirrorDetector", "mirror_pipeline"]

AFTER_FLIP = ("Pad", "LoadAnnotations")  # padding stays right and below; the truth is that of the picture as it is
NMS = dict(nms=dict(type="nms", iou_threshold=0.5), max_per_img=100)


def mirror_pipeline(pipeline: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A test pipeline of mmseg or mmdet that yields each picture twice, as it is and mirrored left to right.

    Args:
        pipeline: the test pipeline: loads the picture first, and packs the inputs last.

    Raises:
        HypvisionError: it begins or ends with something else.
    """
    steps = [dict(step) for step in pipeline]
    names = [str(step.get("type")).rpartition(".")[2] for step in steps]
    if len(steps) < 2 or not names[0].startswith("Load") or not names[-1].startswith("Pack"):
        raise HypvisionError(
            "--tta: the views cannot be derived from the test pipeline of the config, which should begin with "
            f"LoadImageFromFile and end with PackSegInputs or PackDetInputs; it is {', '.join(names) or 'empty'}. Add "
            "a tta_pipeline to the config, or leave out --tta."
        )
    pack = steps[-1]
    if "meta_keys" in pack:  # the merge must know which view is the mirrored one
        pack["meta_keys"] = tuple(dict.fromkeys((*pack["meta_keys"], "ori_shape", "flip", "flip_direction")))
    place = next((i for i in range(1, len(steps)) if names[i] in AFTER_FLIP), len(steps) - 1)
    views = [[step] for step in steps[1:]]
    views.insert(place - 1, [dict(type="RandomFlip", prob=p, direction="horizontal") for p in (0.0, 1.0)])
    return [steps[0], dict(type="TestTimeAug", transforms=views)]


def _unflip(instances: InstanceData, meta: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Boxes ``(N, 4)`` and masks ``(N, H, W)``, if any, in the frame of the picture as it is."""
    boxes, masks = instances.bboxes, instances.get("masks")
    if masks is not None:
        masks = torch.as_tensor(masks)
    if meta.get("flip"):
        if meta.get("flip_direction", "horizontal") != "horizontal":
            raise HypvisionError(f"tta_pipeline: views are flipped {meta['flip_direction']}. Use horizontal flips.")
        left, top, right, bottom = boxes.unbind(-1)
        width = meta["ori_shape"][1]
        boxes = torch.stack([width - right, top, width - left, bottom], dim=-1)
        masks = None if masks is None else masks.flip(-1)
    return boxes, masks


@MODELS.register_module()
class MirrorDetector(BaseTTAModel):
    """A detector that sees each picture in several views and keeps the best of all its boxes, with their masks.

    The boxes of the views are thrown together and thinned out by non-maximum suppression in each class.

    Args:
        tta_cfg: ``nms`` (as in the ``test_cfg`` of mmdet's heads) and ``max_per_img``; default an IoU of 0.5 and 100.
        module, data_preprocessor: see :class:`mmengine.model.BaseTTAModel`.
    """

    def __init__(self, module: Any, tta_cfg: dict[str, Any] | None = None, data_preprocessor: Any = None):
        super().__init__(module, data_preprocessor)
        self.tta_cfg = {**NMS, **(tta_cfg or {})}

    def merge_preds(self, data_samples_list: Sequence[Sequence[Any]]) -> list[Any]:
        """One sample for each picture, from those of its views (the first view is the picture as it is)."""
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
            kept_boxes, keep = kept_boxes[:limit], keep[:limit]
            found = InstanceData(bboxes=kept_boxes[:, :4], scores=kept_boxes[:, 4], labels=labels[keep])
            if views[0][1] is not None:
                found.masks = torch.cat([masks for _, masks in views])[keep.to(views[0][1].device)]
            merged.pred_instances = found
        return merged
