"""Open-vocabulary detection for mmdet: a detector, its heads, data sets with a class list, and AP50
of base and novel classes.

HyperCLIP's authors published no detection code; this is our reconstruction, on the idea of F-VLM
(Kuo et al., ICLR 2023). Importing this module imports mmdet and open_clip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmdet.models.detectors import TwoStageDetector
from mmdet.models.layers import multiclass_nms
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import ConvFCBBoxHead
from mmdet.registry import DATASETS, METRICS, MODELS
from mmdet.structures.bbox import bbox2roi
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from torch import Tensor, nn

from hypvision.clip.models import create_clip
from hypvision.clip.regions import TextClassifier, fuse_scores, pool_boxes
from hypvision.io import Metrics, NameList, Plain
from hypvision.io.files import write_text
from hypvision.openmmlab.coco_metric import CheckedCocoMetric, detections_of, precision_curves
from hypvision.openmmlab.datasets.detection import CheckedCocoDataset
from hypvision.viz.palette import palette

from .vocabulary import (
    ClipScores,
    OpenVocabMaps,
    Vocabulary,
    groups_of,
    held_out,
    mean_percent,
    preprocessing,
)


@MODELS.register_module()
class HyperCLIPDetector(Vocabulary, TwoStageDetector):
    """A two-stage detector whose classes are texts.

    Proposals and box regression do not depend on classes. A region is compared with the texts
    twice, by a trained head and by CLIP's own dense embeddings, see :class:`OpenVocabRoIHead`.
    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        rpn_head, roi_head, train_cfg, test_cfg: as in mmdet's two-stage detectors.
        data_preprocessor: options of mmdet's ``DetDataPreprocessor``; the normalisation is CLIP's.
        options: class lists, ``backbone`` and more: see :meth:`.Vocabulary.build_detector`.
    """

    def __init__(
        self,
        clip: Plain,
        rpn_head: ConfigDict,
        roi_head: ConfigDict,
        train_cfg: ConfigDict | None = None,
        test_cfg: ConfigDict | None = None,
        data_preprocessor: ConfigDict | None = None,
        init_cfg: dict | None = None,
        **options: Any,
    ):
        bundle = create_clip(**clip)
        preprocessor = MODELS.build(preprocessing(bundle, data_preprocessor))
        super(TwoStageDetector, self).__init__(data_preprocessor=preprocessor, init_cfg=init_cfg)
        self.build_detector(bundle, MODELS, **options)
        self.train_cfg = train_cfg
        self.test_cfg = test_cfg
        rpn = ConfigDict(rpn_head)
        roi = ConfigDict(roi_head)
        for head, stage in ((rpn, "rpn"), (roi, "rcnn")):
            rules = {"train_cfg": train_cfg, "test_cfg": test_cfg}
            head.update(
                {name: None if rule is None else rule[stage] for name, rule in rules.items()}
            )
        rpn.num_classes = 1
        roi.bbox_head.setdefault("embedding_size", self.embedding_size)
        self.rpn_head = MODELS.build(rpn)
        self.roi_head = MODELS.build(roi)


@MODELS.register_module()
class OpenVocabBBoxHead(ConvFCBBoxHead):
    """A box head that gives a region an embedding in place of class scores, and one box for all
    classes.

    Args:
        embedding_size: length E of the embedding.
        temperature: initial value of the learned factor of the cosines.
        background_weight: weight in the loss of regions without an object, because an image may
            show novel objects that have no label.
        kwargs: arguments of mmdet's ``ConvFCBBoxHead``.
    """

    def __init__(
        self,
        embedding_size: int,
        temperature: float = 50.0,
        background_weight: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(num_classes=1, reg_class_agnostic=True, **kwargs)
        self.fc_cls = nn.Linear(self.cls_last_dim, embedding_size)
        self.classifier = TextClassifier(embedding_size, temperature)
        self.background_weight = background_weight

    def get_targets(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Return mmdet's targets, with background regions weighted by ``background_weight``."""
        labels, weights, *boxes = super().get_targets(*args, **kwargs)
        return (
            labels,
            torch.where(labels == self.num_classes, weights * self.background_weight, weights),
            *boxes,
        )


@MODELS.register_module()
class OpenVocabRoIHead(ClipScores, StandardRoIHead):
    """A RoI head that compares regions with texts twice, by a trained head and by CLIP.

    With the trained head's probability p of a class (softmax over classes and background) and
    CLIP's probability w (softmax over classes), the score is p^(1-a) w^a, with ``a = alpha`` for
    classes seen in training and ``beta`` for others (:func:`hypvision.clip.regions.fuse_scores`).
    Where CLIP trains, CLIP's classification of the regions with an object adds the loss
    ``loss_region``, from which the adapter learns.

    Args:
        clip_temperature: factor of CLIP's cosines; None: the factor of CLIP's training.
        alpha, beta: weights of CLIP for base and for novel classes.
        region_weight: weight of ``loss_region``.
        kwargs: arguments of mmdet's ``StandardRoIHead``.
    """

    def __init__(
        self,
        clip_temperature: float | None = None,
        alpha: float = 0.1,
        beta: float = 0.8,
        region_weight: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.set_weights(clip_temperature, alpha, beta, region_weight)

    def _bbox_forward(self, x: OpenVocabMaps, rois: Tensor) -> dict[str, Tensor]:
        self.bbox_head.num_classes = len(x.text)
        features = self.bbox_roi_extractor(x[: self.bbox_roi_extractor.num_inputs], rois)
        embeddings, boxes = self.bbox_head(features)
        scores = self.bbox_head.classifier(embeddings, x.text)
        return dict(cls_score=scores, bbox_pred=boxes, bbox_feats=features)

    def bbox_loss(self, x: OpenVocabMaps, sampling_results: list) -> Plain:
        """Return mmdet's losses, and the loss of CLIP's classification of regions with an
        object."""
        results = super().bbox_loss(x, sampling_results)
        if x.trains_clip:
            rois = bbox2roi([result.pos_priors for result in sampling_results])
            labels = torch.cat([result.pos_gt_labels for result in sampling_results])
            results["loss_bbox"]["loss_region"] = self.region_loss(
                self.clip_logits(x, rois), labels
            )
        return results

    def clip_logits(self, x: OpenVocabMaps, rois: Tensor) -> Tensor:
        """Return CLIP's logits ``(K, T)`` of boxes ``(K, 5)``: image number, left, top, right,
        bottom."""
        return self.text_logits(x, pool_boxes(x.dense, rois, x.scale))

    def predict_bbox(
        self,
        x: OpenVocabMaps,
        batch_img_metas: list[dict],
        rpn_results_list: list[InstanceData],
        rcnn_test_cfg: ConfigDict,
        rescale: bool = False,
    ) -> list[InstanceData]:
        """Return the boxes of each image with fused scores; CLIP classifies the refined boxes."""
        x.check(batch_img_metas)
        proposals = [result.bboxes for result in rpn_results_list]
        counts = [len(boxes) for boxes in proposals]
        rois = bbox2roi(proposals)
        results = self._bbox_forward(x, rois)
        trained = results["cls_score"].softmax(-1)[:, :-1]
        found = []
        parts = zip(
            rois.split(counts),
            results["bbox_pred"].split(counts),
            trained.split(counts),
            batch_img_metas,
        )
        for number, (roi, delta, scores, meta) in enumerate(parts):
            boxes = self.bbox_head.bbox_coder.decode(roi[:, 1:], delta, max_shape=meta["img_shape"])
            clip = self.clip_logits(
                x, torch.cat([boxes.new_full((len(boxes), 1), number), boxes], 1)
            ).softmax(-1)
            scores = fuse_scores(scores, clip, x.seen, self.alpha, self.beta)
            if rescale:
                boxes = boxes / boxes.new_tensor(meta["scale_factor"]).repeat(2)
            # The column of the background is never read, but multiclass_nms expects it.
            padded = torch.cat([scores, scores.new_zeros(len(scores), 1)], 1)
            kept, labels = multiclass_nms(
                boxes, padded, rcnn_test_cfg.score_thr, rcnn_test_cfg.nms, rcnn_test_cfg.max_per_img
            )
            found.append(InstanceData(bboxes=kept[:, :4], scores=kept[:, -1], labels=labels))
        return found


# Data sets and the metric
# --------------------------------------------------------------------------------------------------


@DATASETS.register_module()
class OpenVocabCocoDataset(CheckedCocoDataset):
    """Images with an annotation file in COCO's format and a class list.

    Args:
        classes: names of categories of the file, in any order; anything that
            :func:`hypvision.data.classes.load_classes` takes.
        ignore_classes: names that are taken out of the list; their objects have no label, as in
            open-vocabulary training.
        kwargs: arguments of mmdet's ``CocoDataset``.
    """

    def __init__(
        self,
        *args: Any,
        classes: NameList = "coco65",
        ignore_classes: NameList = (),
        **kwargs: Any,
    ):
        kept = held_out(classes, ignore_classes)
        metainfo = dict(
            classes=kept, palette=[tuple(colour) for colour in palette(1 + len(kept))[1:]]
        )
        super().__init__(*args, metainfo=metainfo, ignored="others", **kwargs)


@METRICS.register_module()
class OpenVocabCocoMetric(CheckedCocoMetric):
    """COCO's average precision, for all classes and for groups of classes.

    It returns ``AP50`` and ``AP`` (the mean over IoU 0.5 to 0.95), in percent, as means over the
    classes that occur in the ground truth, and ``AP50_GROUP`` for each group; NaN if none of the
    classes occurs.

    Args:
        groups: group -> class names, e.g. ``dict(base="coco48", novel="coco17")``.
        kwargs: arguments of mmdet's ``CocoMetric``; without ``ann_file`` the ground truth is that
            of the samples. With ``outfile_prefix`` the detections are written as
            ``PREFIX.bbox.json`` and ``PREFIX.segm.json``, in COCO's format.
    """

    default_prefix = "ov"

    def __init__(self, groups: Mapping[str, NameList] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.groups = groups

    def compute_metrics(self, results: list) -> Metrics:
        """Return ``AP50``, ``AP`` and ``AP50_GROUP``; with ``metric=["bbox", "segm"]`` also those
        of masks, as ``segm_...``."""
        names = self.class_names()
        groups = groups_of(names, self.groups)
        truth, predictions = zip(*results) if results else ((), ())
        reference, ids = self.reference(truth)
        found: Metrics = {}
        for metric in self.metrics:
            detections = detections_of(predictions, ids, metric)
            if self.outfile_prefix is not None:
                write_text(
                    f"{self.outfile_prefix}.{metric}.json",
                    json.dumps(detections, default=bytes.decode),
                )
            if self.format_only:
                continue
            precision = _precision(
                reference, detections, ids, [item["img_id"] for item in truth], metric
            )
            self.without_truth = [
                name for name, value in zip(names, precision[0]) if np.isnan(value)
            ]
            prefix = "" if metric == "bbox" else f"{metric}_"
            found[f"{prefix}AP50"] = mean_percent(precision[0])
            found[f"{prefix}AP"] = mean_percent(precision.mean(0))
            for group, numbers in groups.items():
                found[f"{prefix}AP50_{group}"] = mean_percent(precision[0, numbers])
        return found


def _precision(*arguments: Any) -> np.ndarray:
    """Return the average precision ``(thresholds, classes)``, from 0 to 1; NaN for classes without
    an object."""
    precision = precision_curves(*arguments)
    occurs = (precision > -1).all((0, 1))
    return np.where(occurs, precision.mean(1), np.nan)
