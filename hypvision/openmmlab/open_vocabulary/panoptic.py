"""Open-vocabulary panoptic segmentation for mmdet: MaskFormer's masks, classes by text, and the
panoptic quality of base and novel classes.

HyperCLIP's authors published no panoptic code; this is our reconstruction, on the idea of FC-CLIP
(Yu et al., NeurIPS 2023). It needs neither compiled operators nor ``panopticapi``. Importing this
module imports mmdet and open_clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmdet.models.dense_heads import MaskFormerHead
from mmdet.models.detectors import BaseDetector
from mmdet.registry import DATASETS, METRICS, MODELS, TRANSFORMS
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.config import ConfigDict
from mmengine.structures import PixelData
from torch import Tensor, nn

from hypvision.clip.models import create_clip
from hypvision.clip.regions import TextClassifier, fuse_scores, pool_masks
from hypvision.data.classes import check_classes, load_classes, numbered
from hypvision.data.masks import box_of
from hypvision.engine.metrics import Metric
from hypvision.io import HypvisionError, Metrics, NameList, Names, Plain, ensure
from hypvision.io.images import read_labels
from hypvision.openmmlab.datasets.detection import CountedDataset, images_by_id, read_annotations
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
class OpenVocabMaskFormerHead(MaskFormerHead):
    """mmdet's MaskFormer head with texts as classes: a query gives an embedding in place of class
    scores.

    Args:
        embedding_size: length E of the embedding.
        temperature: initial value of the learned factor of the cosines.
        void_weight: weight in the loss of queries without a segment.
        kwargs: arguments of mmdet's ``MaskFormerHead``, without its numbers of classes.
    """

    def __init__(
        self,
        embedding_size: int,
        temperature: float = 20.0,
        void_weight: float = 0.1,
        **kwargs: Any,
    ):
        kwargs["loss_cls"] = ConfigDict(kwargs["loss_cls"], class_weight=[1.0, void_weight])
        super().__init__(num_things_classes=1, num_stuff_classes=0, **kwargs)
        self.cls_embed = nn.Linear(self.decoder_embed_dims, embedding_size)
        self.classifier = TextClassifier(embedding_size, temperature)
        self.void_weight = void_weight

    def forward(
        self, x: OpenVocabMaps, batch_data_samples: list[DetDataSample]
    ) -> tuple[Tensor, Tensor]:
        """Return class logits ``(layers, B, Q, T + 1)``, whose last is that of "nothing", and mask
        logits ``(layers, B, Q, h, w)``."""
        count = len(x.text)
        # Targets do not distinguish things from stuff, so all classes count as things.
        self.num_things_classes = self.num_classes = count
        self.class_weight = self.loss_cls.class_weight = [1.0] * count + [self.void_weight]
        embeddings, masks = super().forward(x, batch_data_samples)
        return self.classifier(embeddings, x.text), masks


def merge_segments(
    scores: Tensor, masks: Tensor, is_thing: Sequence[bool], score_thr: float, overlap_thr: float
) -> Tensor:
    """Give each pixel one segment or none, as in MaskFormer (Cheng et al., NeurIPS 2021, sec. 3.4).

    Masks of stuff, which are classes that are no things, are joined. A mask is dropped if its score
    is below ``score_thr``, or if other masks leave less than the share ``overlap_thr`` of it.

    Args:
        scores: class probabilities of Q masks, ``(Q, T + 1)``, whose last is that of "nothing".
        masks: the masks, ``(Q, H, W)``, from 0 to 1.
        is_thing: for each class whether it is a thing.
        score_thr, overlap_thr: limits for masks.

    Returns:
        int64 ``(H, W)``: class + 1000 * number of the object (0 for stuff); T without a segment.

    Raises:
        HypvisionError: there are 1000 classes or more, which these codes cannot tell from objects.
    """
    count = scores.shape[1] - 1
    ensure(
        count < INSTANCE_OFFSET,
        f"Panoptic maps of mmdet have room for {INSTANCE_OFFSET - 1} classes; the list has "
        f"{count}. Shorten it.",
    )
    best, labels = scores.max(-1)
    keep = (labels < count) & (best > score_thr)
    best = best[keep]
    labels = labels[keep]
    masks = masks[keep]
    found = torch.full(masks.shape[-2:], count, dtype=torch.int64, device=masks.device)
    if not len(masks):
        return found
    owner = (best[:, None, None] * masks).argmax(0)
    number = 0
    for k, label in enumerate(labels.tolist()):
        inside = masks[k] >= 0.5
        won = (owner == k) & inside
        if not won.any() or float(won.sum()) < overlap_thr * float(inside.sum()):
            continue
        if is_thing[label]:
            number += 1
            label += number * INSTANCE_OFFSET
        found[won] = label
    return found


@MODELS.register_module()
class HyperCLIPPanoptic(ClipScores, Vocabulary, BaseDetector):
    """MaskFormer's masks on the blocks of CLIP; each mask is compared with the texts twice.

    p is the trained head's probability of a class, given that there is one, and w CLIP's
    probability for the embeddings under the mask. The score is p^(1-a) w^a, made to sum to one,
    with ``a = alpha`` for classes seen in training and ``beta`` for others. Only the head decides
    whether there is a segment. Where CLIP trains, CLIP's classification of the true segments adds
    the loss ``loss_region``.

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        panoptic_head: an :class:`OpenVocabMaskFormerHead`; its channels are filled in.
        train_cfg: settings of the head.
        test_cfg: ``score_thr`` and ``overlap_thr`` of :func:`merge_segments`.
        thing_classes: names of countable classes; None: those of the data.
        alpha, beta: weights of CLIP for base and for novel classes.
        clip_temperature: factor of CLIP's cosines; None: the factor of CLIP's training.
        region_weight: weight of ``loss_region``.
        data_preprocessor: options of mmdet's ``DetDataPreprocessor``; the normalisation is CLIP's.
        options: class lists, ``backbone`` and more: see :meth:`.Vocabulary.build_detector`.
    """

    def __init__(
        self,
        clip: Plain,
        panoptic_head: ConfigDict,
        train_cfg: ConfigDict | None = None,
        test_cfg: ConfigDict | None = None,
        thing_classes: NameList | None = None,
        alpha: float = 0.4,
        beta: float = 0.8,
        clip_temperature: float | None = None,
        region_weight: float = 1.0,
        data_preprocessor: ConfigDict | None = None,
        init_cfg: dict | None = None,
        **options: Any,
    ):
        bundle = create_clip(**clip)
        prepare = preprocessing(bundle, dict(pad_mask=True, **(data_preprocessor or {})))
        BaseDetector.__init__(self, MODELS.build(prepare), init_cfg)
        self.build_detector(bundle, MODELS, **options)
        self.thing_classes = None if thing_classes is None else load_classes(thing_classes)
        head = ConfigDict(panoptic_head)
        head.setdefault("embedding_size", self.embedding_size)
        head.update(train_cfg=train_cfg, test_cfg=test_cfg)
        self.panoptic_head = MODELS.build(head)
        self.test_cfg = {**dict(score_thr=0.5, overlap_thr=0.8), **(test_cfg or {})}
        self.set_weights(clip_temperature, alpha, beta, region_weight)

    def set_test_classes(self, classes: NameList, things: NameList | None = None) -> None:
        """Look for other classes from now on.

        Args:
            classes: the class names, whether the training had them or not.
            things: the classes of which every object is a segment of its own; None: all classes.
        """
        names = load_classes(classes)
        found = names if things is None else load_classes(things) if things else ()
        unknown = set(found) - set(names)
        if unknown:
            raise HypvisionError(
                f"things has {min(unknown)!r}, which is not in the class list. Correct it."
            )
        super().set_test_classes(names)
        self.thing_classes = found

    def loss(
        self, batch_inputs: Tensor, batch_data_samples: list[DetDataSample]
    ) -> dict[str, Tensor]:
        """Return the head's losses for the segments in ``gt_instances`` (things and stuff alike),
        and CLIP's ``loss_region``."""
        x = self.extract_feat(batch_inputs)
        losses = self.panoptic_head.loss(x, batch_data_samples)
        if x.trains_clip:
            logits = []
            labels = []
            for number, sample in enumerate(batch_data_samples):
                truth = sample.gt_instances
                masks = truth.masks.to_tensor(dtype=torch.float32, device=batch_inputs.device)
                logits.append(self.clip_logits(x, number, masks))
                labels.append(truth.labels)
            losses["loss_region"] = self.region_loss(torch.cat(logits), torch.cat(labels))
        return losses

    def clip_logits(self, x: OpenVocabMaps, number: int, masks: Tensor) -> Tensor:
        """Return CLIP's logits ``(Q, T)`` of masks ``(Q, H, W)``, 0 to 1, of image ``number`` of
        the batch."""
        return self.text_logits(x, pool_masks(x.dense[number : number + 1], masks[None])[0])

    def fused_scores(self, trained: Tensor, clip: Tensor, seen: Tensor) -> Tensor:
        """Return the probabilities ``(Q, T + 1)`` of Q masks: those of the T classes are fused from
        the trained head's ``(Q, T + 1)`` and CLIP's ``(Q, T)``; the last, of no object, is the
        trained head's."""
        nothing = trained[:, -1:]
        known = trained[:, :-1] / trained[:, :-1].sum(-1, keepdim=True).clamp(min=1e-12)
        fused = fuse_scores(known, clip, seen, self.alpha, self.beta)
        fused = fused / fused.sum(-1, keepdim=True).clamp(min=1e-12)
        return torch.cat([fused * (1 - nothing), nothing], -1)

    def predict(
        self, batch_inputs: Tensor, batch_data_samples: list[DetDataSample], rescale: bool = True
    ) -> list[DetDataSample]:
        """Return samples with ``pred_panoptic_seg.sem_seg`` ``(1, H, W)``, as
        :func:`merge_segments` codes it; with ``rescale`` at the original size."""
        x = self.extract_feat(batch_inputs)
        logits, masks = self.panoptic_head.predict(x, batch_data_samples)
        x.check(batch_data_samples, logits, masks)
        things = self.thing_classes if self.thing_classes is not None else self.data_things
        is_thing = [things is None or name in things for name in self.test_classes]
        for number, sample in enumerate(batch_data_samples):
            height, width = sample.img_shape[:2]
            binary = masks[number] > 0
            binary[:, height:] = False
            binary[:, :, width:] = False
            clip = self.clip_logits(x, number, binary.float()).softmax(-1)
            scores = self.fused_scores(logits[number].softmax(-1), clip, x.seen)
            part = masks[number, :, :height, :width]
            if rescale:
                part = F.interpolate(
                    part[None], sample.ori_shape[:2], mode="bilinear", align_corners=False
                )[0]
            limits = (self.test_cfg[key] for key in ("score_thr", "overlap_thr"))
            found = merge_segments(scores, part.sigmoid(), is_thing, *limits)
            sample.pred_panoptic_seg = PixelData(sem_seg=found[None])
        return batch_data_samples

    def _forward(
        self, batch_inputs: Tensor, batch_data_samples: list[DetDataSample]
    ) -> tuple[Tensor, Tensor]:
        return self.panoptic_head(self.extract_feat(batch_inputs), batch_data_samples)


# The data set
# --------------------------------------------------------------------------------------------------

_NEEDED = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("image_id", "file_name", "segments_info"),
    "categories": ("id", "name"),
}


@DATASETS.register_module()
class OpenVocabPanopticDataset(CountedDataset):
    """Images with an annotation file and segment maps in COCO's panoptic format, and a class list.

    Args:
        ann_file: the JSON file.
        data_prefix: ``dict(img=..., seg=...)``, the folders of images and of segment maps.
        classes: a name for each category of the file, in its order; anything that
            :func:`hypvision.data.classes.load_classes` takes. None: the file's own names.
        ignore_classes: names that are taken out of the list; pixels of their segments have no
            label.
        kwargs: arguments of mmdet's ``BaseDetDataset``.
    """

    OBJECTS = "segments"

    def __init__(
        self,
        ann_file: str,
        classes: NameList | None = None,
        ignore_classes: NameList = (),
        **kwargs: Any,
    ):
        self.words = classes
        self.out = ignore_classes
        super().__init__(ann_file=ann_file, **kwargs)

    def _segments(self, item: Plain, images: dict, label: dict, number: dict) -> list[Plain]:
        """Return the segments of an entry of the file whose class is known, after checks. ``label``
        is category id -> class name, and ``number`` class name -> class number."""
        if item["image_id"] not in images:
            raise HypvisionError(
                f"In '{self.ann_file}', the segments of '{item['file_name']}' belong to the "
                f"image_id {item['image_id']}, which is not in the file's list of images. "
                "Correct the file."
            )
        where = f"In '{self.ann_file}', a segment of '{item['file_name']}'"
        segments = []
        listed: list[Any] = item["segments_info"]
        for segment in listed if isinstance(listed, list) else [None]:
            name = label[_category(segment, label, where)]
            crowd = int(bool(segment.get("iscrowd", 0)))
            if name in number:
                segments.append(dict(id=segment["id"], category=number[name], iscrowd=crowd))
            if crowd or name not in number:
                reason = "crowd" if crowd else "of ignored classes"
                self.usage.leave_out(
                    "segments", reason, f"{item['file_name']}, segment {segment['id']}"
                )
        return segments

    def _class_names(self, content: Plain) -> Names:
        """Return a name for each category of the file: its own, or that in the class list."""
        own = [item["name"] for item in content["categories"]]
        names = load_classes(own if self.words is None else self.words)
        if len(names) != len(content["categories"]):
            raise HypvisionError(
                f"The annotation file '{self.ann_file}' has {len(content['categories'])} "
                f"categories, but the class list has {len(names)} names. Give a name for "
                "each category, in the order of the file."
            )
        return names

    def load_data_list(self) -> list[Plain]:
        content = read_annotations(self.ann_file, _NEEDED)
        names = self._class_names(content)
        given = [(item["id"], item["name"]) for item in content["categories"]]
        where = f"The annotation file '{self.ann_file}'"
        check_classes(given, where, "Correct its categories.", shared_names=True)
        kept = held_out(names, self.out)
        things = [
            name
            for name, item in zip(names, content["categories"])
            if item.get("isthing", 1) and name in kept
        ]
        self._metainfo.update(
            classes=kept, thing_classes=tuple(things), palette=palette(1 + len(kept))[1:]
        )
        label = {item["id"]: name for item, name in zip(content["categories"], names)}
        number = numbered(kept)
        images = images_by_id(content, self.ann_file, self.usage)
        found = []
        for item in content["annotations"]:
            segments = self._segments(item, images, label, number)
            image = images[item["image_id"]]
            paths = dict(
                img_path=str(Path(self.data_prefix["img"], image["file_name"])),
                seg_map_path=str(Path(self.data_prefix["seg"], item["file_name"])),
            )
            size = dict(height=image["height"], width=image["width"])
            found.append(dict(paths, img_id=item["image_id"], **size, segments_info=segments))
        annotated = {item["image_id"] for item in content["annotations"]}
        for image in images.values():
            if image["id"] not in annotated:
                self.usage.leave_out("images", "without an annotation", image["file_name"])
        return found

    def _filtered(self) -> list[dict]:
        """Return the images to use: all in a test, in training those with a labelled segment."""
        return [item for item in self.data_list if self.test_mode or self._labels(item)]

    @staticmethod
    def _labels(item: dict) -> list[int]:
        return [segment["category"] for segment in item["segments_info"] if not segment["iscrowd"]]


def _category(segment: Any, label: dict, where: str) -> Any:
    """Return the category id of a segment in an annotation file, after checks."""
    if not isinstance(segment, dict) or not isinstance(segment.get("id"), int):
        raise HypvisionError(
            f"{where} is {segment!r:.100}. Expected: a dict with an id. Correct the file."
        )
    category = segment.get("category_id")
    if not isinstance(category, (int, float, str)) or category not in label:
        raise HypvisionError(
            f"{where} has the category_id {category}, which is none of the file's "
            "categories. Correct the number, or add the category."
        )
    return category


@TRANSFORMS.register_module()
class LoadPanopticSegments:
    """Load the segments of an image as instances, things and stuff alike, from COCO's coloured
    segment maps.

    It adds ``gt_masks``, ``gt_bboxes``, ``gt_bboxes_labels`` and ``gt_ignore_flags`` of all
    segments but crowds, and ``panoptic_ids``, int64 ``(H, W)``, the segment id of each pixel at the
    original size, 0 for pixels without a label.
    """

    @staticmethod
    def _ids(results: Plain) -> np.ndarray:
        """Return the segment id of each pixel, int64 ``(H, W)``, 0 without a segment, after
        checks."""
        path = results["seg_map_path"]
        colours = read_labels(path, "segment map", "RGB").astype(np.int64)
        if colours.shape[:2] != tuple(results["ori_shape"][:2]):
            raise HypvisionError(
                f"The segment map '{path}' has {colours.shape[0]} x {colours.shape[1]} pixels, its "
                f"image {results['ori_shape'][0]} x {results['ori_shape'][1]}. Correct one of the "
                "two."
            )
        ids = colours[..., 0] + 256 * colours[..., 1] + 256**2 * colours[..., 2]
        ids[~np.isin(ids, [segment["id"] for segment in results["segments_info"]])] = 0
        if results["segments_info"] and not ids.any():
            raise HypvisionError(
                f"The segment map '{path}' has none of the segments of its annotation. Expected: a "
                "coloured image, in which red + 256 green + 256^2 blue is the id of a segment. "
                "Replace it by the one that belongs there."
            )
        return ids

    def __call__(self, results: Plain) -> Plain:
        # An image of mmdet.apis.inference_detector has neither segments nor their map.
        if not {"seg_map_path", "segments_info"} & results.keys():
            return results
        ids = self._ids(results)
        segments = [
            s for s in results["segments_info"] if not s["iscrowd"] and (ids == s["id"]).any()
        ]
        masks = [ids == segment["id"] for segment in segments]
        boxes = np.array([box_of(mask) for mask in masks], dtype=np.float32).reshape(-1, 4)
        results.update(
            panoptic_ids=ids,
            gt_bboxes=HorizontalBoxes(boxes),
            gt_bboxes_labels=np.array(
                [segment["category"] for segment in segments], dtype=np.int64
            ),
            gt_ignore_flags=np.zeros(len(masks), dtype=bool),
            gt_masks=BitmapMasks([mask.astype(np.uint8) for mask in masks], *ids.shape),
        )
        return results


# The metric
# --------------------------------------------------------------------------------------------------


def panoptic_counts(
    predicted: np.ndarray,
    labels: Mapping[int, int],
    truth: np.ndarray,
    segments: Sequence[Mapping[str, int]],
    count: int,
) -> np.ndarray:
    """Return the matches of one image, float64 ``(count, 4)`` by class: the sum of IoU, true
    positives, false positives and false negatives (Kirillov et al., CVPR 2019, "Panoptic
    Segmentation"; void and crowds as in COCO).

    Args:
        predicted: the number of each pixel's predicted segment, ``(H, W)``.
        labels: number of a predicted segment -> its class; other numbers are no segments.
        truth: the id of each pixel's true segment, ``(H, W)``; 0: void.
        segments: the true segments.
        count: number of classes.
    """
    true_ids, rows = np.unique(truth, return_inverse=True)
    found_ids, columns = np.unique(predicted, return_inverse=True)
    overlap = np.zeros((len(true_ids), len(found_ids)))
    np.add.at(overlap, (rows.ravel(), columns.ravel()), 1)
    true = {segment["id"]: segment for segment in segments}
    wanted = np.array([true[a]["category"] if a in true else -1 for a in true_ids.tolist()])
    crowd = np.array([bool(a in true and true[a]["iscrowd"]) for a in true_ids.tolist()])
    given = np.array([labels.get(b, -2) for b in found_ids.tolist()])
    void = overlap[wanted < 0].sum(0)
    same = wanted[:, None] == given
    union = overlap.sum(1)[:, None] + overlap.sum(0) - overlap - void
    match = same & ~crowd[:, None] & (overlap > 0.5 * union)
    missed = (wanted >= 0) & ~crowd & ~match.any(1)
    ignored = void + (overlap * (same & crowd[:, None])).sum(0)
    extra = (given >= 0) & ~match.any(0) & (ignored <= 0.5 * overlap.sum(0))
    found = np.zeros((count, 4))
    a, b = np.nonzero(match)
    np.add.at(found[:, 0], given[b], overlap[a, b] / union[a, b])
    for column, classes in ((1, given[b]), (2, given[extra]), (3, wanted[missed])):
        np.add.at(found[:, column], classes, 1)
    return found


@METRICS.register_module()
class OpenVocabPanopticMetric(Metric):
    """Panoptic quality PQ = SQ * RQ, in percent, as means over the classes that occur or are
    predicted; NaN if no class occurs at all.

    It returns ``PQ``, ``SQ``, ``RQ``, ``PQ_things``, ``PQ_stuff``, and ``PQ_GROUP`` for each group.
    The samples must have ``panoptic_ids`` and ``segments_info``, which the ``meta_keys`` of
    ``PackDetInputs`` must name.

    Args:
        groups: group -> class names, e.g. ``dict(novel="coco17")``; the group ``"rest"`` has the
            classes that are in no group.
    """

    default_prefix = "ov"

    def __init__(self, groups: Mapping[str, NameList] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.groups = groups

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        count = len(self.class_names())
        for sample in data_samples:
            if "panoptic_ids" not in sample or "segments_info" not in sample:
                raise HypvisionError(
                    "The samples lack 'panoptic_ids' or 'segments_info'. Name both in meta_keys of "
                    "PackDetInputs in the test pipeline, after LoadPanopticSegments."
                )
            predicted = np.asarray(sample["pred_panoptic_seg"]["sem_seg"].cpu())[0]
            labels = {
                int(k): int(k) % INSTANCE_OFFSET
                for k in np.unique(predicted)
                if k % INSTANCE_OFFSET < count
            }
            truth = sample["panoptic_ids"]
            if predicted.shape != truth.shape:
                raise HypvisionError(
                    f"The prediction for '{sample.get('img_path')}' has the shape "
                    f"{predicted.shape}, the truth {truth.shape}. Test with rescale=True."
                )
            self.results.append(
                panoptic_counts(predicted, labels, truth, sample["segments_info"], count)
            )

    def compute_metrics(self, results: list[np.ndarray]) -> Metrics:
        names = self.class_names()
        groups = groups_of(names, self.groups)
        if groups:
            taken = set().union(*groups.values())
            groups["rest"] = [k for k in range(len(names)) if k not in taken]
        things = self.dataset_meta.get("thing_classes")
        if things is not None:
            groups["things"] = [k for k, name in enumerate(names) if name in things]
            groups["stuff"] = [k for k, name in enumerate(names) if name not in things]
        iou, tp, fp, fn = sum(results, np.zeros((len(names), 4))).T
        total = tp + (fp + fn) / 2
        occurs = tp + fn > 0
        self.without_truth = [name for name, there in zip(names, occurs) if not there]
        with np.errstate(invalid="ignore", divide="ignore"):
            # If no class occurs in the truth, wrong segments cannot be rated.
            total = total if occurs.any() else total * np.nan
            quality = iou / total
            segmentation = iou / np.maximum(tp, 1) + 0 * quality
            recognition = tp / total
        found = dict(
            PQ=mean_percent(quality), SQ=mean_percent(segmentation), RQ=mean_percent(recognition)
        )
        return found | {
            f"PQ_{group}": mean_percent(quality[numbers])
            for group, numbers in groups.items()
            if numbers
        }
