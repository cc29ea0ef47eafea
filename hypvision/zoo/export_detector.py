"""Turn a whole detector of mmdet into a function of one image, in operators that every format has.

mmdet sorts boxes into lists whose lengths depend on the image. Here every step has a fixed number
of boxes: a box that a threshold or non-maximum suppression drops keeps its place, with the score 0.
The result equals mmdet's for heads that share its common post-processing: RetinaNet, FCOS, ATSS and
similar ones, Faster and Mask R-CNN. Images come one by one and have one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from hypvision.io import HypvisionError, ensure

_DROPPED = -1.0  # score of boxes that must not suppress others


class DetectorNetwork(nn.Module):
    """A detector as a function of ``images (1, C, H, W)`` that returns boxes ``(N, 4)``, scores
    ``(N,)``, labels ``(N,)`` and, with a mask head, masks.

    Boxes are x1 y1 x2 y2 in pixels of the image that was given, by falling score; a score of 0
    marks an empty place. Masks ``(N, M, M)`` are the probabilities inside each box. N is
    ``max_per_img`` of the config.

    Args:
        model: a detector of mmdet, in eval mode.
        size: height and width of the images.

    Raises:
        HypvisionError: the head finds boxes in its own way, or suppresses boxes in a way or with
            options that no format has.
    """

    def __init__(self, model: Any, size: Sequence[int]):
        super().__init__()
        self.model = model
        self.size = tuple(size)
        self.two_stage = hasattr(model, "roi_head")
        if self.two_stage:
            head = model.roi_head
            _check(model.rpn_head, ("predict_by_feat",), "BaseDenseHead", model.rpn_head.test_cfg)
            _check(model.rpn_head, ("_predict_by_feat_single", "_bbox_post_process"), "RPNHead")
            _check(head, ("predict_bbox", "_bbox_forward"), "StandardRoIHead", head.test_cfg)
            _check(head.bbox_head, ("predict_by_feat", "_predict_by_feat_single"), "BBoxHead")
            for extractor in (
                head.bbox_roi_extractor,
                *([head.mask_roi_extractor] if head.with_mask else []),
            ):
                _check(extractor, ("forward", "map_roi_levels"), "SingleRoIExtractor")
        elif hasattr(model, "bbox_head") and hasattr(model.bbox_head, "prior_generator"):
            methods = ("predict_by_feat", "_predict_by_feat_single", "_bbox_post_process")
            _check(model.bbox_head, methods, "BaseDenseHead", model.bbox_head.test_cfg)
        else:
            raise _refusal(model)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = self.model.extract_feat(x)
        if not self.two_stage:
            return self._keep(*self._dense(maps), self.model.bbox_head.test_cfg)
        boxes, scores, levels = self._proposals(maps)
        proposals, scores, _ = self._keep(boxes, scores, levels, self.model.rpn_head.test_cfg)
        return self._regions(maps, proposals, scores > 0)

    def _levels(
        self, head: Any, maps: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        """Return for each level of the maps the scores (P, classes), box codes (P, 4), priors (P,
        4) and the factors of the scores (P,), or None without factors."""
        outputs = head(maps)
        priors = head.prior_generator.grid_priors(
            [y.shape[-2:] for y in outputs[0]], outputs[0][0].dtype, maps[0].device
        )
        found = []
        for number, prior in enumerate(priors):
            logits, codes, *factors = (
                output[number][0].permute(1, 2, 0).reshape(-1, width)
                for output, width in zip(
                    outputs, (head.cls_out_channels, head.bbox_coder.encode_size, 1)
                )
            )
            scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[:, :-1]
            found.append((scores, codes, prior, factors[0][:, 0].sigmoid() if factors else None))
        return found

    def _dense(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes, scores and labels of a single-stage head, before non-maximum
        suppression."""
        head = self.model.bbox_head
        config = head.test_cfg
        parts = []
        for scores, codes, priors, factors in self._levels(head, maps):
            classes = scores.shape[1]
            best, places = scores.flatten().topk(_count(config.get("nms_pre", -1), scores.numel()))
            rows = places // classes
            kept = best > config.get("score_thr", 0)
            best = best if factors is None else best * factors[rows]
            parts.append(
                (priors[rows], codes[rows], torch.where(kept, best, _DROPPED), places % classes)
            )
        return self._joined(head, parts)

    def _proposals(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes, scores and levels of a region proposal network, before non-maximum
        suppression."""
        head = self.model.rpn_head
        parts = []
        for level, (scores, codes, priors, _) in enumerate(self._levels(head, maps)):
            best, rows = scores[:, 0].topk(_count(head.test_cfg.get("nms_pre", -1), len(scores)))
            parts.append((priors[rows], codes[rows], best, torch.full_like(rows, level)))
        return self._joined(head, parts)

    def _joined(
        self, head: Any, parts: Sequence[tuple[Tensor, ...]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes, scores and labels of all levels, from each one's priors, codes, scores and
        labels."""
        priors, codes, scores, labels = (torch.cat(part) for part in zip(*parts))
        return self._decode(head, priors, codes), scores, labels

    def _decode(self, head: Any, priors: Tensor, codes: Tensor) -> Tensor:
        return head.bbox_coder.decode(priors, codes, max_shape=self.size)

    def _keep(
        self, boxes: Tensor, scores: Tensor, labels: Tensor, config: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply greedy non-maximum suppression within each label; return ``max_per_img`` boxes with
        scores and labels, in which empty places have the score 0."""
        smallest = config.get("min_bbox_size", -1)
        if smallest >= 0:
            large = (boxes[:, 2] - boxes[:, 0] > smallest) & (boxes[:, 3] - boxes[:, 1] > smallest)
            scores = torch.where(large, scores, _DROPPED)
        groups = torch.zeros_like(labels) if config.nms.get("class_agnostic", False) else labels
        # Boxes of each label are shifted apart, so that boxes of different labels do not overlap.
        apart = boxes + (groups.to(boxes) * (max(self.size) + 1))[:, None]
        kept = torchvision.ops.nms(apart, scores, config.nms.get("iou_threshold", 0.5))
        chosen = torch.zeros_like(scores, dtype=torch.bool).index_put(
            (kept,), torch.tensor(True, device=scores.device)
        )
        scores, order = (
            torch.where(chosen, scores, 0.0)
            .clamp(min=0)
            .topk(_count(config.max_per_img, len(scores)))
        )
        return boxes[order], scores, labels[order]

    def _regions(
        self, maps: Sequence[Tensor], proposals: Tensor, valid: Tensor
    ) -> tuple[Tensor, ...]:
        head = self.model.roi_head
        box_head = head.bbox_head
        config = head.test_cfg
        logits, codes = box_head(_pool(head.bbox_roi_extractor, maps, proposals))
        scores = logits.softmax(-1)[:, :-1]
        count, classes = scores.shape
        each = 1 if box_head.reg_class_agnostic else classes
        boxes = self._decode(
            box_head, proposals.repeat_interleave(each, 0), codes.reshape(count * each, -1)
        )
        boxes = boxes.reshape(count, each, 4).expand(count, classes, 4).reshape(-1, 4)
        scores = torch.where(
            valid[:, None] & (scores > config.score_thr), scores, _DROPPED
        ).flatten()
        # The probabilities of a box sum to 1, so at most this many exceed the threshold.
        most = count * int(1 / config.score_thr) if config.score_thr > 0 else -1
        scores, places = scores.topk(_count(most, len(scores)))
        found = self._keep(boxes[places], scores, places % classes, config)
        if not head.with_mask:
            return found
        masks = head.mask_head(_pool(head.mask_roi_extractor, maps, found[0])).sigmoid()
        own = torch.zeros_like(found[2]) if head.mask_head.class_agnostic else found[2]
        return *found, masks[torch.arange(len(masks), device=masks.device), own]

    def difference(self, got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
        """Return the largest distance from a box to the nearest box of the same label in the other
        result.

        The distance of two boxes is the largest of those of their corners (in sides of the image),
        scores and masks. Boxes whose score is within a hundredth of the lowest are left out, since
        round-off decides which of them have a place.
        """
        worst = 0.0
        for own, other in ((got, expected), (expected, got)):
            floor = own[1].min() if own[1].min() > 0 else 0.0
            for number in (own[1] > floor * 1.01 + 1e-6).nonzero()[:, 0].tolist():
                apart = (other[0] - own[0][number]).abs().amax(1) / max(self.size)
                apart = torch.maximum(apart, (other[1] - own[1][number]).abs())
                if len(own) > 3:
                    apart = torch.maximum(
                        apart, (other[3] - own[3][number]).abs().flatten(1).amax(1)
                    )
                apart = torch.where(other[2] == own[2][number], apart, torch.inf)
                # max() would ignore a NaN, so it becomes infinite.
                apart = apart.nan_to_num(nan=torch.inf, posinf=torch.inf)
                worst = max(worst, apart.min().item())
        return worst


def _pool(extractor: Any, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Return the RoIAlign features ``(N, C, s, s)`` of every box, from the map that its size
    belongs to."""
    maps = maps[: extractor.num_inputs]
    rois = torch.cat([boxes.new_zeros(len(boxes), 1), boxes], 1)
    levels = extractor.map_roi_levels(rois, len(maps))
    pooled = []
    for layer, features in zip(extractor.roi_layers, maps):
        pooled.append(
            torchvision.ops.roi_align(
                features,
                rois,
                layer.output_size,
                layer.spatial_scale,
                layer.sampling_ratio,
                layer.aligned,
            )
        )
    result = pooled[0]
    for number, features in enumerate(pooled[1:], start=1):
        result = torch.where((levels == number)[:, None, None, None], features, result)
    return result


def _count(most: int, there: int) -> int:
    return there if most <= 0 else min(most, there)


def _check(part: nn.Module, methods: Sequence[str], owner: str, config: Any = None) -> None:
    """Raise an error for a part that overrides a method of mmdet's common class ``owner``, or whose
    ``config`` asks for another suppression than plain nms."""
    for method in methods:
        if (
            getattr(type(part), method, None) is None
            or getattr(type(part), method).__qualname__ != f"{owner}.{method}"
        ):
            raise _refusal(part)
    nms = {} if config is None else config.get("nms") or {}
    kind = nms.get("type", "nms")
    ensure(
        kind == "nms",
        f"The detector suppresses boxes by '{kind}', which no format has an operator for. "
        "Export it with nms=dict(type='nms', iou_threshold=...) in test_cfg, or --part "
        "features.",
    )
    other = [
        name for name in nms if name not in ("type", "iou_threshold", "class_agnostic", "split_thr")
    ]
    if other:
        raise HypvisionError(
            f"The nms of test_cfg has {', '.join(other)}, which an exported detector does not "
            "support. Its options are iou_threshold (rename iou_thr, its older name) and "
            "class_agnostic. Remove other options; score_thr and max_per_img of test_cfg drop "
            "boxes by score and number."
        )


def _refusal(part: nn.Module) -> HypvisionError:
    return HypvisionError(
        f"{type(part).__name__} finds boxes in a way of its own, which cannot be exported: "
        "detectors that can be exported whole are RetinaNet, FCOS, ATSS and others that share "
        "their post-processing, Faster and Mask R-CNN. Add --part features for the maps of "
        "backbone and neck; docs/model-zoo.md shows how the head takes them."
    )
