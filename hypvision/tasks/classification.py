"""Image classification: any timm model under mmengine's Runner, and its metric.

The timm model is the attribute ``backbone``, so the keys of a checkpoint are ``backbone.*`` and the same checkpoint
initialises the backbone of a segmenter or detector.
"""

from __future__ import annotations

import json
from typing import Any

import timm
import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from hypvision.errors import HypvisionError, did_you_mean
from hypvision.files import replacing

__all__ = ["ImageClassifier", "TopKAccuracy", "create_backbone"]


def create_backbone(model_name: str, **kwargs: Any) -> nn.Module:
    """:func:`timm.create_model`, with an error that helps when the name is unknown.

    Raises:
        HypvisionError: timm has no such model or no such weights, close names are listed; an argument that the model
            does not have, or a value that it refuses.
    """
    name = model_name.partition(".")[0]
    if ":" not in model_name and "/" not in model_name and not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise HypvisionError(
            f"There is no model '{model_name}'.{hint} timm.list_models() lists all (after import hypvision); write "
            "the one you want in model.backbone.model_name of the config."
        )
    try:
        return timm.create_model(model_name, **kwargs)
    except (TypeError, ValueError) as error:  # an argument, or a value of it, that the model's constructor refuses
        if isinstance(error, OSError):  # of a download: in some versions of the hub its errors are both
            raise
        raise HypvisionError(
            f"The model '{model_name}' does not accept what model.backbone of the config gives it: "
            f"{str(error).rstrip('.')}."
        ) from error
    except RuntimeError as error:
        if "Invalid pretrained tag" not in str(error):
            raise
        known = ", ".join(timm.list_pretrained(f"{name}*")) or "none"
        raise HypvisionError(f"The model '{name}' has no weights '{model_name}'. Available: {known}.") from error


@MODELS.register_module()
class ImageClassifier(BaseModel):
    """A timm model with a classification loss.

    Args:
        backbone: arguments of :func:`timm.create_model`: ``model_name``, ``num_classes``, ``pretrained``, ...
        label_smoothing: smoothing of the targets; goes into the mixed targets too where ``mixup`` is on.
        mixup: arguments of :class:`timm.data.Mixup` (``mixup_alpha``, ``cutmix_alpha``, ``prob``, ``switch_prob``,
            ...); None for none. Its random numbers come from NumPy's global generator, which
            :class:`~hypvision.tasks.RepeatableSeedHook` seeds.
        test_flip: predict from the mean logits of an image and its mirror image (``tools/test.py --tta``).
        data_preprocessor: mmengine's; the default moves a batch to the device.

    Raises:
        HypvisionError: unknown model or weights, or a model without classes.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        label_smoothing: float = 0.0,
        mixup: dict[str, Any] | None = None,
        test_flip: bool = False,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = create_backbone(**backbone)
        self.num_classes = self.backbone.num_classes
        if not self.num_classes:
            raise HypvisionError("A classifier needs classes: set model.backbone.num_classes in the config.")
        self.label_smoothing = label_smoothing
        self.test_flip = test_flip
        self.mixup = None
        if mixup is not None:
            self.mixup = Mixup(**mixup, label_smoothing=label_smoothing, num_classes=self.num_classes)
        self.soft_target_loss = SoftTargetCrossEntropy()

    def forward(
        self, inputs: Tensor, label: Tensor | None = None, index: Tensor | None = None, mode: str = "tensor"
    ) -> Tensor | dict[str, Tensor] | list[dict[str, Any]]:
        """The three modes of mmengine's models.

        Args:
            inputs: images ``(B, C, H, W)``.
            label: class numbers ``(B,)``; needed by ``"loss"``.
            index: numbers of the images in their data set ``(B,)``, passed on by ``"predict"``.
            mode: ``"tensor"``, ``"loss"`` or ``"predict"``.

        Returns:
            ``"tensor"``: logits ``(B, num_classes)``. ``"loss"``: ``dict(loss=scalar)``. ``"predict"``: for each image
            a dict with ``scores`` ``(num_classes,)``, ``label`` and ``index`` (None where not given).
        """
        if mode == "loss":
            return dict(loss=self.loss(inputs, label))
        logits = self.backbone(inputs)
        if mode == "tensor":
            return logits
        if mode == "predict":
            if self.test_flip:
                logits = (logits + self.backbone(inputs.flip(-1))) / 2
            scores = logits.float().softmax(-1).cpu()
            labels = [None] * len(scores) if label is None else label.tolist()
            indices = [None] * len(scores) if index is None else index.tolist()
            return [dict(scores=s, label=y, index=i) for s, y, i in zip(scores, labels, indices)]
        raise ValueError(f"mode must be 'tensor', 'loss' or 'predict', got '{mode}'.")

    def loss(self, inputs: Tensor, label: Tensor) -> Tensor:
        """Mean cross-entropy of a batch, in float32."""
        if self.mixup is not None and self.training and len(inputs) > 1:
            if len(inputs) % 2:  # timm mixes an image with its mirror in the batch: an odd one out has no partner
                inputs, label = inputs[:-1], label[:-1]
            inputs, target = self.mixup(inputs, label)
            return self.soft_target_loss(self.backbone(inputs).float(), target)
        return F.cross_entropy(self.backbone(inputs).float(), label, label_smoothing=self.label_smoothing)


@METRICS.register_module()
class TopKAccuracy(BaseMetric):
    """Share of images, in percent, whose class is among the k of highest score: ``top1``, ``top5``, ...

    Args:
        topk: the values of k; one above the number of classes is left out.
        out_file: write the metrics, the accuracy of each class and every prediction there, as JSON.
        collect_device, prefix, collect_dir: see :class:`mmengine.evaluator.BaseMetric`.
    """

    default_prefix = ""

    def __init__(self, topk: tuple[int, ...] = (1, 5), out_file: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.topk = tuple(topk)
        self.out_file = out_file

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep the best classes of each image; ``data_samples`` comes from :class:`ImageClassifier`."""
        keep = min(max(self.topk), len(data_samples[0]["scores"]))
        scores, classes = torch.stack([sample["scores"] for sample in data_samples]).topk(keep)
        for sample, top_scores, top_classes in zip(data_samples, scores.tolist(), classes.tolist()):
            self.results.append((sample["index"], sample["label"], top_classes, top_scores))

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        """Accuracies from ``(index, label, best classes, their scores)`` of all images."""
        depth = len(results[0][2])
        metrics = {
            f"top{k}": 100.0 * sum(label in classes[:k] for _, label, classes, _ in results) / len(results)
            for k in self.topk
            if k <= depth
        }
        if self.out_file is not None:
            self._write(results, metrics)
        return metrics

    def _write(self, results: list[tuple], metrics: dict[str, float]) -> None:
        names = (self.dataset_meta or {}).get("classes")
        hits: dict[int, list[bool]] = {}
        for _, label, classes, _ in results:
            hits.setdefault(label, []).append(classes[0] == label)
        report = dict(
            metrics=metrics,
            classes=None if names is None else list(names),
            top1_per_class={str(names[c] if names else c): 100.0 * sum(h) / len(h) for c, h in sorted(hits.items())},
            predictions=[dict(index=i, label=y, classes=c, scores=s) for i, y, c, s in results],
        )
        with replacing(self.out_file) as temporary:
            temporary.write_text(json.dumps(report) + "\n")
