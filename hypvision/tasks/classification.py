"""Image classification: any timm model under mmengine's Runner, and its metric.

The timm model is the attribute ``backbone``, so the keys of a checkpoint are ``backbone.*`` and the same checkpoint
initialises the backbone of a segmenter or detector.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, METRICS, MODELS
from mmengine.runner import Runner
from PIL import Image, ImageDraw
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from hypvision.checks import at_least, between
from hypvision.data.image_folder import build_transform
from hypvision.engine.extensions import PREDICTION_ARGUMENTS, PREDICTORS, RUN_HOOKS, TEST_OPTIONS, TestOptions
from hypvision.engine.metrics import Metric
from hypvision.errors import HypvisionError, did_you_mean
from hypvision.files import below, read_json, replacing, write_json
from hypvision.inference.predictors import Predictor, Request, classifier
from hypvision.models.base import head_names
from hypvision.models.timm_models import create_model
from hypvision.tasks.metric_learning_metrics import lca_heights
from hypvision.tasks.publishing import image_input

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = [
    "CalibrationError",
    "GroupAccuracy",
    "ImageClassifier",
    "ImageInputHook",
    "PredictionPainterHook",
    "TopKAccuracy",
    "create_backbone",
]


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
        return create_model(model_name, **kwargs)
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


def freeze_parameters(network: nn.Module, patterns: Sequence[str]) -> None:
    """Take what matches a pattern of parameter names, e.g. ``"patch_embed.*"``, out of the training.

    Raises:
        HypvisionError: a pattern that matches nothing.
    """
    for pattern in patterns:
        matched = [parameter for name, parameter in network.named_parameters() if fnmatch(name, pattern)]
        if not matched:
            names = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name, _ in network.named_parameters()))
            raise HypvisionError(f"model.frozen: '{pattern}' matches no parameter of the backbone. It has {names}.")
        for parameter in matched:
            parameter.requires_grad_(False)


def rest_batch_norms(network: nn.Module, every: bool = False) -> None:
    """Put batch norms that are not trained, or ``every`` one, into evaluation mode: they keep their statistics."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            every or (module.affine and not module.weight.requires_grad)
        ):
            module.eval()


def load_start(network: nn.Module, checkpoint: str) -> None:
    """Load the weights that a fine-tuning starts from.

    Args:
        network: a timm model; a Hi-Mapper takes weights of its bare backbone, its ``trunk``, too.
        checkpoint: a file or ``"zoo:NAME"``.

    Raises:
        HypvisionError: weights of the backbone are missing in it or have other shapes; a head for other classes is
            left out.
    """
    from mmengine.runner import CheckpointLoader

    weights: Any = CheckpointLoader.load_checkpoint(checkpoint, "cpu")
    for wrapper in ("state_dict", "model"):
        if isinstance(weights.get(wrapper), dict):
            weights = weights[wrapper]
    weights = {name.removeprefix("module.").removeprefix("backbone."): value for name, value in weights.items()}
    own, part = network.state_dict(), "trunk." if hasattr(network, "trunk") else ""
    if not any(name.startswith(part) for name in weights):
        weights = {f"{part}{name}": value for name, value in weights.items()}
    head = head_names(network)
    fitting = {name: v for name, v in weights.items() if name in own and own[name].shape == v.shape}
    lacking = [name for name in own if name.startswith(part) and name not in fitting and name not in head]
    if lacking:
        raise HypvisionError(
            f"The checkpoint '{checkpoint}' does not fit the backbone: {len(lacking)} weights are missing or have "
            f"another shape, such as {', '.join(lacking[:3])}. Give one of the same architecture in model.checkpoint."
        )
    network.load_state_dict({**own, **fitting})


@MODELS.register_module()
class ImageClassifier(BaseModel):
    """A timm model with a classification loss.

    Args:
        backbone: arguments of :func:`timm.create_model`: ``model_name``, ``num_classes``, ``pretrained``, ...
        label_smoothing: smoothing of the targets; goes into the mixed targets too where ``mixup`` is on.
        mixup: arguments of :class:`timm.data.Mixup` (``mixup_alpha``, ``cutmix_alpha``, ``prob``, ``switch_prob``,
            ...); None for none. Its random numbers come from NumPy's global generator, which
            :class:`~hypvision.engine.hooks.RepeatableSeedHook` seeds.
        test_flip: predict from the mean logits of an image and its mirror image (``tools/test.py --tta``).
        data_preprocessor: mmengine's; the default moves a batch to the device.
        checkpoint: weights that the training starts from, a file (of timm, of any training of ours) or ``"zoo:NAME"``.
            The head is loaded where it has as many classes.
        frozen, freeze_bn: parts of the backbone that keep their values, see :func:`freeze_parameters` and
            :func:`rest_batch_norms`.
        channels_last: lay maps out with the channels last: a training of a convolutional network on a CPU took 0.6 to
            0.7 of the time.

    Raises:
        HypvisionError: unknown model or weights, a model without classes, a pattern in ``frozen`` that matches nothing,
            or a checkpoint that does not fit.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        label_smoothing: float = 0.0,
        mixup: dict[str, Any] | None = None,
        test_flip: bool = False,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | None = None,
        checkpoint: str | None = None,
        frozen: Sequence[str] = (),
        freeze_bn: bool = False,
        channels_last: bool = False,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = create_backbone(**backbone)
        if channels_last:
            self.backbone.to(memory_format=torch.channels_last)
        self.checkpoint, self.freeze_bn = checkpoint, freeze_bn
        freeze_parameters(self.backbone, frozen)
        self.num_classes = self.backbone.num_classes
        if not self.num_classes:
            raise HypvisionError("A classifier needs classes: set model.backbone.num_classes in the config.")
        between(0, 1, label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        self.test_flip = test_flip
        self.mixup = None
        if mixup is not None:
            self.mixup = Mixup(**mixup, label_smoothing=label_smoothing, num_classes=self.num_classes)
        self.soft_target_loss = SoftTargetCrossEntropy()

    def init_weights(self) -> None:
        """Load the checkpoint that the training starts from."""
        super().init_weights()
        if self.checkpoint is not None:
            load_start(self.backbone, self.checkpoint)

    def train(self, mode: bool = True) -> ImageClassifier:
        super().train(mode)
        if mode:
            rest_batch_norms(self.backbone, self.freeze_bn)
        return self

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
class TopKAccuracy(Metric):
    """Share of images, in percent, whose class is among the k of highest score: ``top1``, ``top5``, ...

    Images without a label do not count; without any, the shares are NaN.

    Args:
        topk: the values of k; one above the number of classes is left out.
        out_file: write the metrics, the accuracy of each class and every prediction there, as JSON.
        collect_device, prefix, collect_dir: see :class:`mmengine.evaluator.BaseMetric`.
    """

    default_prefix = ""

    def __init__(self, topk: tuple[int, ...] = (1, 5), out_file: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.topk = tuple(topk)
        if min(self.topk) < 1:
            raise ValueError(f"topk must be numbers from 1, got {topk}")
        self.out_file = out_file

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep the best classes of each image; ``data_samples`` comes from :class:`ImageClassifier`.

        Raises:
            HypvisionError: a score is not finite; names the image.
        """
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if not self.check(scores, "A score", data_samples):
            return
        scores, classes = scores.topk(min(max(self.topk), scores.shape[1]))
        for sample, top_scores, top_classes in zip(data_samples, scores.tolist(), classes.tolist()):
            self.results.append((sample["index"], sample["label"], top_classes, top_scores))

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        """Accuracies from ``(index, label, best classes, their scores)`` of all images."""
        known = [(label, classes) for _, label, classes, _ in results if label is not None]
        if len(known) < len(results):
            self.without_truth = [f"{len(results) - len(known)} of {len(results)} images"]
        depth = (
            len(results[0][2]) if results else len((self.dataset_meta or {}).get("classes") or range(max(self.topk)))
        )
        metrics = {
            f"top{k}": 100.0 * sum(label in classes[:k] for label, classes in known) / len(known) if known else math.nan
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
            if label is not None:
                hits.setdefault(label, []).append(classes[0] == label)
        report = dict(
            metrics=metrics,
            classes=None if names is None else list(names),
            top1_per_class={str(names[c] if names else c): 100.0 * sum(h) / len(h) for c, h in sorted(hits.items())},
            predictions=[dict(index=i, label=y, classes=c, scores=s) for i, y, c, s in results],
        )
        write_json(self.out_file, report, indent=None)


@METRICS.register_module()
class CalibrationError(Metric):
    """Expected calibration error in percent (Naeini et al., AAAI 2015), as ``ece``.

    The mean over all images with a label of the gap between confidence and accuracy in the bin of their confidence;
    NaN without any.

    Args:
        bins: number of bins of equal width.
        collect_device, prefix, collect_dir: see :class:`mmengine.evaluator.BaseMetric`.

    Raises:
        ValueError: ``bins`` is not positive.
    """

    default_prefix = ""

    def __init__(self, bins: int = 15, **kwargs: Any):
        super().__init__(**kwargs)
        at_least(1, integer=True, bins=bins)
        self.bins = bins

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep confidence and success; ``data_samples`` comes from :class:`ImageClassifier`.

        Raises:
            HypvisionError: a score is not finite; names the image.
        """
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A score", data_samples):
            for sample, confidence, best in zip(data_samples, *(part.tolist() for part in scores.max(1))):
                right = None if sample["label"] is None else best == sample["label"]
                self.results.append((confidence, right))

    def compute_metrics(self, results: list[tuple[float, bool | None]]) -> dict[str, float]:
        """The error of ``(confidence, right)`` of all images."""
        known = [(confidence, right) for confidence, right in results if right is not None]
        if len(known) < len(results):
            self.without_truth = [f"{len(results) - len(known)} of {len(results)} images"]
        if not known:
            return {"ece": math.nan}
        confidence, right = torch.tensor(known, dtype=torch.float64).unbind(1)
        place = (confidence * self.bins).long().clamp(max=self.bins - 1)
        gaps = torch.zeros(self.bins, dtype=torch.float64).index_add_(0, place, right - confidence)
        return {"ece": 100.0 * gaps.abs().sum().item() / len(known)}


@METRICS.register_module()
class GroupAccuracy(Metric):
    """Accuracy at the upper levels of a hierarchy of classes, and how far off mistakes are.

    For each level the share of images, in percent, whose predicted class is in the right group; and
    ``mistake_distance``, the mean number of edges between the predicted class and the true one over the images that
    are wrong: 2 for a sibling (Bertinetto et al., CVPR 2020, give half of it, the height).

    Args:
        ancestors: the groups above each class, from general to specific, by the names of the classes; or a JSON file
            of it.
        levels: what the levels are called, from general to specific.
        collect_device, prefix, collect_dir: see :class:`mmengine.evaluator.BaseMetric`.

    Raises:
        HypvisionError: the file is missing; a class without entry, or one of another depth.
    """

    default_prefix = ""

    def __init__(self, ancestors: Mapping[str, Sequence[str]] | str, levels: Sequence[str], **kwargs: Any):
        super().__init__(**kwargs)
        if isinstance(ancestors, str):
            try:
                ancestors = read_json(ancestors)
            except (OSError, ValueError) as error:
                raise HypvisionError(
                    f"The groups of classes cannot be read from '{ancestors}' ({error}). Expected: JSON "
                    '{"CLASS": ["GROUP", ...]}, from general to specific. Correct "ancestors" of the GroupAccuracy in '
                    "the config."
                ) from error
        self.ancestors, self.levels = ancestors, tuple(levels)

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep the best class of each image; ``data_samples`` comes from :class:`ImageClassifier`.

        Raises:
            HypvisionError: a score is not finite; names the image.
        """
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A score", data_samples):
            self.results += zip((sample["label"] for sample in data_samples), scores.argmax(1).tolist())

    def compute_metrics(self, results: list[tuple[int | None, int]]) -> dict[str, float]:
        """Of ``(label, best class)`` of all images; ``mistake_distance`` is 0 if none is wrong."""
        known = [pair for pair in results if pair[0] is not None]
        if len(known) < len(results):
            self.without_truth = [f"{len(results) - len(known)} of {len(results)} images"]
        if not known:
            return dict.fromkeys([*self.levels, "mistake_distance"], math.nan)
        above = []
        for name in (self.dataset_meta or {})["classes"]:
            above.append(tuple(self.ancestors.get(name, ())))
            if len(above[-1]) != len(self.levels):
                raise HypvisionError(
                    f"The class '{name}' has the groups {above[-1]} above it, but the levels are "
                    f"{', '.join(self.levels)}. Correct 'ancestors' of the GroupAccuracy in the config."
                )
        heights = lca_heights(above)[tuple(torch.tensor(known).T)]
        wrong = heights[heights > 0].double()
        metrics = {
            level: 100.0 * float((heights <= len(self.levels) - place).double().mean())
            for place, level in enumerate(self.levels)
        }
        return metrics | {"mistake_distance": 2 * float(wrong.mean()) if len(wrong) else 0.0}


@HOOKS.register_module()
class PredictionPainterHook(Hook):
    """Writes images of test images with the predicted and the true class below (``tools/test.py --show-dir``).

    Data sets lie in the order of their classes: the images are taken evenly from all of it, not from its beginning.

    Args:
        out_dir: folder of the images; made if missing. Names begin with ``wrong`` or ``right``.
        limit: how many images at most.
        min_side: images smaller than this many pixels are enlarged to be seen.
    """

    def __init__(self, out_dir: str, limit: int = 200, min_side: int = 160):
        self.out_dir = Path(out_dir)
        self.limit = limit
        self.min_side = min_side

    def before_test(self, runner: Runner) -> None:
        count = len(runner.test_dataloader.dataset)
        chosen = min(self.limit, count)
        self.chosen = {i * count // chosen for i in range(chosen)}
        self.out_dir.mkdir(parents=True, exist_ok=True)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: list[dict[str, Any]] | None = None
    ) -> None:
        dataset = runner.test_dataloader.dataset
        names = dataset.metainfo["classes"]
        for output in outputs or ():  # each process paints its own share
            if output["index"] not in self.chosen:
                continue
            best, label = int(output["scores"].argmax()), output["label"]
            text = [f"{names[best]}  {100 * float(output['scores'][best]):.0f}%", f"true: {names[label]}"]
            verdict = "right" if best == label else "wrong"
            painted = self._paint(dataset.read(output["index"]), text, right=best == label)
            name = re.sub(r"[/\\]", "-", str(names[label]))  # a class may be called "yes/no"
            with replacing(below(self.out_dir, f"{verdict}_{output['index']:06d}_{name}.png")) as temporary:
                painted.save(temporary)

    def _paint(self, image: Image.Image, text: list[str], right: bool) -> Image.Image:
        factor = max(1, math.ceil(self.min_side / min(image.size)))
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        canvas = Image.new("RGB", (image.width, image.height + 34), "white")
        canvas.paste(image, (0, 0))
        draw = ImageDraw.Draw(canvas)
        draw.text((4, image.height + 3), text[0], fill="darkgreen" if right else "firebrick")
        draw.text((4, image.height + 17), text[1], fill="black")
        return canvas


@HOOKS.register_module()
class ImageInputHook(Hook):
    """Writes into each checkpoint what images its network is tested on (``meta.input``), for those who take the weights
    without the config (:func:`hypvision.zoo.loading.load_trained`)."""

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Changes ``checkpoint`` in place."""
        dataset = (runner.cfg.get("test_dataloader") or {}).get("dataset") or {}
        if isinstance(dataset, dict) and "transform" in dataset and "backbone" in runner.cfg.model:
            checkpoint["meta"]["input"] = image_input(runner.cfg)


def _flip(config: Config) -> None:
    config.model.test_flip = True


def _paint(config: Config, folder: Path) -> None:
    config.custom_hooks = [*config.custom_hooks, dict(type="PredictionPainterHook", out_dir=str(folder))]


TEST_OPTIONS["ImageClassifier"] = TestOptions(_flip, _paint)
PREDICTION_ARGUMENTS["TopKAccuracy"] = "out_file"
RUN_HOOKS.append("ImageInputHook")


def _predictor(model: ImageClassifier, config: Config, request: Request) -> Predictor:
    """By the transform of the test data, and the classes that the checkpoint names."""
    if request.classes is not None:
        raise HypvisionError(f"The classes of '{request.model}' are fixed: leave out --classes.")
    dataset = config.get("test_dataloader", config.get("val_dataloader"))["dataset"]
    names = (model.dataset_meta or {}).get("classes") or [str(i) for i in range(model.num_classes)]
    transform = build_transform(dict(dataset["transform"]))
    return classifier(lambda x: model(x, mode="tensor"), transform, tuple(names), request.device)


PREDICTORS.update(ImageClassifier=_predictor, HierarchyClassifier=_predictor)
