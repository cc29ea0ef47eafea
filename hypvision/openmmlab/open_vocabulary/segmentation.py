"""Open-vocabulary segmentation for mmseg: the segmentor, its preprocessor, data sets with a class
list, 16-bit label maps, and the metric.

Importing this module imports mmseg and open_clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmcv.transforms import Resize
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import PixelData
from mmseg.datasets import BaseSegDataset
from mmseg.models.segmentors import BaseSegmentor
from mmseg.registry import DATASETS, METRICS, MODELS, TRANSFORMS
from mmseg.structures import SegDataSample
from mmseg.utils import stack_batch
from PIL import Image
from torch import Tensor

from hypvision.clip.segmentation.segmenter import SegmenterBase
from hypvision.data.classes import load_classes, numbered
from hypvision.io import HypvisionError, Metrics, NameList, Plain, one_of, refuse
from hypvision.openmmlab.datasets.segmentation import LoadLabelMap
from hypvision.openmmlab.label_maps import LabelMapIoUMetric
from hypvision.viz.palette import palette as colours

from .vocabulary import Vocabulary, groups_of, held_out, mean_percent


@MODELS.register_module()
class OpenVocabPreProcessor(BaseDataPreprocessor):
    """A preprocessor of images as OpenCV reads them to RGB from 0 to 255, in padded batches for
    training and as lists of images of any size for a test. ``seg_pad_val`` is the label of pixels
    where label maps of unequal sizes are padded."""

    def __init__(self, seg_pad_val: int = 255, **kwargs: Any):
        super().__init__(**kwargs)
        self.seg_pad_val = seg_pad_val

    def forward(self, data: Plain, training: bool = False) -> Plain:
        """Return the ``inputs`` and ``data_samples`` of a batch, on the model's device."""
        data = self.cast_data(data)
        inputs = [image.flip(0).float() for image in data["inputs"]]
        samples = data.get("data_samples")
        if training:
            size = tuple(max(image.shape[k] for image in inputs) for k in (-2, -1))
            inputs, samples = stack_batch(
                inputs=inputs,
                data_samples=samples,
                size=size,
                pad_val=128,
                seg_pad_val=self.seg_pad_val,
            )
        return dict(inputs=inputs, data_samples=samples)


@MODELS.register_module()
class HyperCLIPSegmentor(SegmenterBase, Vocabulary, BaseSegmentor):
    """:class:`hypvision.clip.segmentation.segmenter.OpenVocabSegmenter` as a segmentor of mmseg.

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        train_classes, test_classes: see :meth:`.Vocabulary.set_vocabularies`.
        background_from: in a test, classes from this number on become this number (PAS-20b: 20).
        ignore_index: label of ignored pixels in training.
        pretrained, train_cfg: None, which ``mmseg.apis.init_model`` gives every model.
        options: arguments of :class:`~hypvision.clip.segmentation.segmenter.OpenVocabSegmenter`.
    """

    def __init__(
        self,
        clip: Plain,
        train_classes: NameList | None = None,
        test_classes: NameList | None = None,
        background_from: int | None = None,
        ignore_index: int = 255,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
        pretrained: None = None,
        train_cfg: None = None,
        **options: Any,
    ):
        refuse(
            (
                pretrained is not None,
                f"model.pretrained={pretrained!r} cannot be loaded: a {type(self).__name__} takes "
                "the weights of CLIP by clip=dict(pretrained=...), and its own by load_from.",
            ),
            (
                train_cfg is not None,
                f"model.train_cfg={train_cfg!r} has no effect: a {type(self).__name__} takes its "
                "settings as arguments of its own. Leave train_cfg out.",
            ),
        )
        preprocessor = data_preprocessor or OpenVocabPreProcessor(seg_pad_val=ignore_index)
        BaseSegmentor.__init__(self, data_preprocessor=preprocessor, init_cfg=init_cfg)
        self.build(clip, **options)
        self.set_vocabularies(train_classes, test_classes)
        self.background_from = background_from
        self.ignore_index = ignore_index

    def loss(self, inputs: Tensor, data_samples: list[SegDataSample]) -> dict[str, Tensor]:
        """Return the binary cross-entropy of a batch ``(B, 3, H, W)`` against its label maps, as
        ``loss``."""
        labels = torch.stack([sample.gt_sem_seg.data.squeeze(0) for sample in data_samples]).long()
        self.classes = self.train_classes
        return dict(loss=self.segmentation_loss(inputs, labels, self.ignore_index))

    def predict(
        self, inputs: Sequence[Tensor], data_samples: list[SegDataSample] | None = None
    ) -> list[SegDataSample]:
        """Return samples with label maps at the images' original sizes, as ``pred_sem_seg``, for
        any number of images of any sizes."""
        self.classes = self.test_classes
        samples = data_samples or [SegDataSample() for _ in inputs]
        sizes = [
            tuple(sample.metainfo.get("ori_shape", image.shape[-2:])[:2])
            for sample, image in zip(samples, inputs)
        ]
        names = [str(sample.get("img_path", place)) for place, sample in enumerate(samples)]
        maps: list[Any] = self.predict_labels(inputs, sizes, names=names)
        for sample, label in zip(samples, maps):
            if self.background_from is not None:
                label = label.clamp(max=self.background_from)
            sample.pred_sem_seg = PixelData(data=label[None])
        return samples

    def _forward(self, inputs: Tensor | Sequence[Tensor], data_samples: Any = None) -> Tensor:
        self.classes = (self.train_classes if self.training else self.test_classes) or self.classes
        return self.logits(inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs)))

    def extract_feat(self, inputs: Tensor) -> Tensor:
        """Return dense CLIP embeddings ``(B, E, h, w)`` of images."""
        from hypvision.clip.towers import encode_dense

        return encode_dense(self.clip, (inputs - self.mean) / self.std)[0]

    def encode_decode(self, inputs: Tensor, batch_img_metas: Any = None) -> Tensor:
        """Return logits ``(B, T, h, w)`` of images."""
        return self.logits(inputs)


# Data sets and the metric
# --------------------------------------------------------------------------------------------------


@TRANSFORMS.register_module()
class Load16BitAnnotations(LoadLabelMap):
    """Load label maps for class lists of any length, in which 255 may be a class."""

    last_is_ignored = False


@TRANSFORMS.register_module()
class Resize16Bit(Resize):
    """mmcv's Resize, also for label maps of more than 8 bits, which mmcv refuses to resize with
    Pillow as the backend."""

    def _resize_seg(self, results: Plain) -> None:
        labels = results.get("gt_seg_map")
        if labels is None or labels.dtype == np.uint8:
            super()._resize_seg(results)
        else:
            size = results["img_shape"][1::-1]
            image = Image.fromarray(labels.astype(np.int32))
            results["gt_seg_map"] = np.array(image.resize(size, Image.Resampling.NEAREST))


@DATASETS.register_module()
class OpenVocabSegDataset(BaseSegDataset):
    """A folder of images, a folder of label maps, and a class list.

    Args:
        classes: class names in the order of the labels; anything that
            :func:`hypvision.data.classes.load_classes` takes.
        data_root, data_prefix: as in mmseg; ``data_prefix=dict(img_path="images",
            seg_map_path="masks")``.
        seg_map_suffix: suffix of the label maps; if it is not given, other suffixes are accepted
            too.
        ignore_index: label of ignored pixels.
        ignore_classes: names that are taken out of the list, and whose pixels are ignored (held-out
            classes in training).
        palette: colour of each class, for ``rgb_masks`` (docs/own-data.md).
    """

    def __init__(
        self,
        classes: NameList,
        seg_map_suffix: str = ".png",
        ignore_index: int = 255,
        ignore_classes: Sequence[str] = (),
        palette: Sequence[Sequence[int]] | None = None,
        **kwargs: Any,
    ):
        names = load_classes(classes)
        if 0 <= ignore_index < len(names):
            raise HypvisionError(
                f"ignore_index={ignore_index} is the label of {names[ignore_index]!r}, so that its "
                f"pixels would be ignored. With {len(names)} classes give another ignore_index, "
                "such as 65535, to the data set, the model and the metric."
            )
        kept = held_out(names, ignore_classes)
        self._map = {}
        if len(kept) < len(names):
            place = numbered(kept)
            self._map = {i: place.get(name, ignore_index) for i, name in enumerate(names)}
        super().__init__(
            metainfo=dict(classes=kept, palette=colours(len(kept))), ignore_index=ignore_index,
            reduce_zero_label=False, seg_map_suffix=seg_map_suffix or ".png",
            mask_palette=palette or (), **kwargs,
        )  # fmt: skip

    def load_data_list(self) -> list[Plain]:
        """Return every image of the folder with the label map of the same name."""
        self.label_map = self._map or None
        return super().load_data_list()


@METRICS.register_module()
class OpenVocabIoUMetric(LabelMapIoUMetric):
    """mIoU as detectron2 reports it, over the classes that occur in the ground truth.

    mmseg's own metric counts a class that is predicted but never occurs as 0, which lowers the mean
    of long class lists strongly.

    Args:
        absent_classes: ``"ignore"`` leaves out classes that do not occur; ``"zero"`` counts them as
            mmseg does.
        groups: group -> class names, e.g. ``dict(novel=[...])``, which adds ``mIoU_novel``.
        kwargs: arguments of mmseg's IoUMetric.
    """

    def __init__(
        self,
        absent_classes: str = "ignore",
        groups: dict[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ):
        one_of(("ignore", "zero"), absent_classes=absent_classes)
        kwargs.setdefault("iou_metrics", ["mIoU"])
        super().__init__(**kwargs)
        self.absent_classes = absent_classes
        self.groups = dict(groups or {})

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Process a batch as mmseg's metric does, after a check of the labels."""
        count = len(self.class_names())
        for sample in data_samples:
            if not self.format_only:
                label = sample["gt_sem_seg"]["data"]
                label = label[label != self.ignore_index]
                if label.numel() and (label.min() < 0 or label.max() >= count):
                    raise HypvisionError(
                        f"The label map of '{sample.get('img_path')}' has the label "
                        f"{int(label.max())}, but there are {count} classes and "
                        f"{self.ignore_index} for ignored pixels. Correct the maps or the list."
                    )
        super().process(data_batch, data_samples)

    def compute_metrics(self, results: list) -> Metrics:
        """Return ``mIoU``, ``aAcc``, ``mAcc``, and ``mIoU_GROUP`` of each group."""
        metrics = dict(super().compute_metrics(results))
        if self.format_only:
            return metrics
        results = results or [(torch.zeros(len(self.class_names()), dtype=torch.int64),) * 4]
        intersect, union, _, label = (sum(part).double().numpy() for part in zip(*results))
        with np.errstate(invalid="ignore", divide="ignore"):
            iou = intersect / union
            accuracy = intersect / label
        if self.absent_classes == "ignore":
            iou = np.where(label > 0, iou, np.nan)
        metrics.update(mIoU=mean_percent(iou), mAcc=mean_percent(accuracy))
        groups = groups_of(self.class_names(), self.groups)
        return metrics | {
            f"mIoU_{group}": mean_percent(iou[numbers]) for group, numbers in groups.items()
        }
