"""Image classification: training and testing of any timm model with mmengine's Runner.

The timm model is the attribute ``backbone``, so the keys of a checkpoint are ``backbone.*`` and the
same checkpoint initialises the backbone of a segmenter or detector.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import CheckpointLoader, Runner
from timm.data import Mixup
from torch import Tensor, nn

from hypvision.checkpoints.match import Comparison, check_tuning, check_unknown, compare
from hypvision.checkpoints.read import network_weights
from hypvision.checkpoints.types import StateDict
from hypvision.checkpoints.wrappers import without_prefix
from hypvision.data.image_folder import build_transform, unrecorded
from hypvision.data.samplers import evenly
from hypvision.engine.config import Run
from hypvision.engine.extensions import PREDICTORS, RUN_HOOKS, TEST_OPTIONS, TestOptions
from hypvision.engine.hooks import ClassWeights, classes_in
from hypvision.inference.knowledge import Known
from hypvision.inference.predictors import Predictor, Request, classifier, label_score
from hypvision.io import (
    HypvisionError,
    Plain,
    between,
    did_you_mean,
    ensure,
    more_than,
    one_of,
    refuse,
)
from hypvision.io.files import below
from hypvision.io.images import as_rgb
from hypvision.io.records import foreign_setting
from hypvision.losses import PrototypeHead
from hypvision.models.base import head_names
from hypvision.models.timm_models import create_model
from hypvision.nn.batch_statistics import is_batch_norm
from hypvision.nn.busemann import BusemannHead
from hypvision.viz.sheet import fitted, save_image, titled_sheet
from hypvision.zoo.backbones import network_arguments

from .publishing import image_input, input_size

_logger = logging.getLogger(__name__)
_PAINTED = 160  # least length of a painted image's longer side in pixels


def create_backbone(model_name: str, remedy: str = "", **kwargs: Any) -> Any:
    """Return the network of :func:`timm.create_model`, with errors that name the setting of the
    config to correct; ``remedy`` is the advice at the end of the error for weights that cannot be
    fetched."""
    name = model_name.partition(".")[0]
    if not {":", "/"} & {*model_name} and not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise HypvisionError(
            f"There is no model '{model_name}'.{hint} timm.list_models() lists all (after import "
            "hypvision); write the one you want in model.backbone.model_name of the config."
        )
    try:
        return create_model(model_name, **kwargs)
    # Exception also covers errors of the hub and of sockets, some of which are OSError, ValueError.
    except Exception as error:
        problem = _why_not_created(error, model_name)
        if not problem and remedy and kwargs.get("pretrained"):
            problem = _why_not_fetched(error, model_name)
            problem += f" {remedy}" if problem else ""
        if not problem:
            raise
        raise HypvisionError(problem) from error


def _why_not_created(error: Exception, model_name: str) -> str:
    """Return what to change in the config, if the error comes from the model's name or arguments;
    otherwise the empty string."""
    if isinstance(error, (TypeError, ValueError)) and not isinstance(error, OSError):
        reason = str(error).rstrip(".")
        return (
            f"The model '{model_name}' does not accept what model.backbone of the config gives "
            f"it: {reason}."
        )
    if "Invalid pretrained tag" in str(error):
        name = model_name.partition(".")[0]
        known = ", ".join(timm.list_pretrained(f"{name}*")) or "none"
        return f"The model '{name}' has no weights '{model_name}'. Available: {known}."
    return ""


def _why_not_fetched(error: Exception, model_name: str) -> str:
    """Return why published weights could not be fetched; the empty string for other errors."""
    if "No pretrained weights exist" in str(error):
        return f"There are no published weights of the model '{model_name}'."
    # A RuntimeError means that the weights do not fit, or that there is not enough memory.
    if isinstance(error, (HypvisionError, RuntimeError, AssertionError)):
        return ""
    return (
        f"The published weights of '{model_name}' cannot be fetched ({type(error).__name__}: "
        f"{error}). Check the connection."
    )


def freeze_parameters(network: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names match one of the patterns, e.g. ``"patch_embed.*"``."""
    for pattern in patterns:
        matched = [
            parameter for name, parameter in network.named_parameters() if fnmatch(name, pattern)
        ]
        if not matched:
            names = ", ".join(
                dict.fromkeys(name.rpartition(".")[0] for name, _ in network.named_parameters())
            )
            raise HypvisionError(
                f"model.frozen: '{pattern}' matches no parameter of the backbone. It has {names}."
            )
        for parameter in matched:
            parameter.requires_grad_(False)


def load_start(network: nn.Module, checkpoint: str) -> tuple[tuple[str, ...], bool]:
    """Load the weights that a fine-tuning starts from, leaving out a head for other classes; for a
    Hi-Mapper the file may also hold the weights of its backbone alone (its ``trunk``).

    Returns:
        The names of the classes of the loaded head, () if no head was loaded or it has no names;
        and whether the network has a head that was not loaded.
    """
    content = CheckpointLoader.load_checkpoint(checkpoint, "cpu")
    own = network.state_dict()
    part = "trunk." if hasattr(network, "trunk") else ""
    weights = _named_weights(own, network_weights(content), part)
    head = head_names(network)
    shapes = {name: value.shape for name, value in own.items()}
    fitting = {name: value for name, value in weights.items() if value.shape == shapes.get(name)}
    lacking = [name for name in own if name not in fitting and name not in head]
    unknown = [name for name in compare(own, weights).unexpected if not _of_head(network, name)]
    check_tuning(unknown, checkpoint)
    _check_fits([name for name in lacking if name.startswith(part)], unknown, checkpoint)
    check_unknown(Comparison(list(own), [], unknown, {}), checkpoint)
    _tell_kept(lacking, weights, checkpoint)
    network.load_state_dict({**own, **fitting})
    is_new = not head <= fitting.keys()
    return classes_in(content) if head and not is_new else (), is_new


def _tell_kept(lacking: list[str], weights: Iterable[str], checkpoint: str) -> None:
    """Warn of weights that a checkpoint lacks although it has others of the same module."""
    parts = {name.partition(".")[0] for name in weights}
    names = [name for name in lacking if name.partition(".")[0] in parts]
    if names:
        _logger.warning(
            "%d weights of this model are missing in '%s' or have another shape there, such as %s: "
            "they keep their initial values.",
            len(names), checkpoint, names[0],
        )  # fmt: skip


def _named_weights(own: StateDict, weights: StateDict, part: str) -> StateDict:
    """Return the weights of a checkpoint under the names that the network gives them; if no name in
    the file begins with ``part``, the file holds the weights of this part alone."""
    weights = without_prefix(own, weights)
    if any(name.startswith(part) for name in weights):
        return weights
    inner = [name.removeprefix(part) for name in own if name.startswith(part)]
    return {f"{part}{name}": value for name, value in without_prefix(inner, weights).items()}


def _check_fits(lacking: list[str], unknown: list[str], checkpoint: str) -> None:
    """Raise an error for a checkpoint that lacks weights of the backbone (``lacking``)."""
    there = f" The file has {', '.join(unknown[:3])}, ..." if unknown else ""
    if lacking:
        raise HypvisionError(
            f"The checkpoint '{checkpoint}' does not fit the backbone: {len(lacking)} weights are "
            f"missing or have another shape, such as {', '.join(lacking[:3])}.{there} Give one of "
            "the same architecture in model.checkpoint."
        )


def _of_head(network: Any, name: str) -> bool:
    """Return whether ``name`` is a weight of a classification head; networks without a head ignore
    such weights."""
    heads = network.pretrained_cfg.get("classifier") or "head"
    heads = (heads,) if isinstance(heads, str) else heads
    return any(name.removeprefix("trunk.").startswith(f"{head}.") for head in heads)


class BackboneModel(BaseModel):
    """An mmengine model around a timm model, its ``backbone``.

    Args:
        backbone: arguments of :func:`timm.create_model`: ``model_name``, ``num_classes``,
            ``pretrained``, ...
        checkpoint: weights that the training starts from: a file (of timm, or of any hypvision
            training) or ``"zoo:NAME"``. Its head is loaded if it has as many classes; the labels of
            the data then follow the order of the class names in the file.
        frozen: patterns of names of the backbone's parameters that are not trained, e.g.
            ``("patch_embed.*",)``.
        freeze_bn: keep all batch norms of the backbone in evaluation mode.
        channels_last: use the channels-last memory format; on a CPU a convolutional network then
            trained in 0.6 to 0.7 of the time.
    """

    def __init__(
        self,
        backbone: Plain,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | None = None,
        checkpoint: str | None = None,
        frozen: Sequence[str] = (),
        freeze_bn: bool = False,
        channels_last: bool = False,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        remedy = (
            "Give a file with --cfg-options model.backbone.pretrained_cfg_overlay.file=WEIGHTS, or "
            "start from random weights with --cfg-options model.backbone.pretrained=False."
        )
        self.backbone = create_backbone(remedy=remedy, **backbone)
        # Without this mmengine would call init_weights of the timm model, which would overwrite
        # the weights that pretrained=True has loaded.
        self.backbone.is_init = True
        if channels_last:
            self.backbone.to(memory_format=torch.channels_last)
        self.checkpoint = checkpoint
        self.freeze_bn = freeze_bn
        # timm loads the head of published weights only if the number of classes is the same.
        published = (
            self.backbone.pretrained_cfg.get("num_classes") if backbone.get("pretrained") else None
        )
        self.head_is_new = published is not None and published != self.backbone.num_classes
        freeze_parameters(self.backbone, frozen)

    def check_channels(self, images: Tensor) -> None:
        """Raise an error for images whose number of channels is not what the backbone takes."""
        ensure(
            isinstance(images, Tensor),
            "The data loader gives a list of images. Set collate_fn=dict(type='default_collate') "
            "in it.",
        )
        given = images.shape[1]
        wanted = getattr(self.backbone, "in_chans", images.shape[1])
        ensure(
            given == wanted,
            f"The images have {given} channels, but model.backbone takes {wanted}. Set "
            f"channels={wanted} in every data set of the config, with as many values of mean "
            f"and std, or model.backbone.in_chans={given}.",
        )

    def init_weights(self) -> None:
        super().init_weights()
        if self.checkpoint is not None:
            self.start_classes, self.head_is_new = load_start(self.backbone, self.checkpoint)

    def train(self, mode: bool = True) -> BackboneModel:
        """Switch between training and evaluation mode; frozen batch norms stay in evaluation mode
        and keep their statistics."""
        super().train(mode)
        for module in self.backbone.modules() if mode else ():
            if is_batch_norm(module):
                own = list(module.parameters(recurse=False))
                learns = not own or any(parameter.requires_grad for parameter in own)
                module.train(learns and not self.freeze_bn)
        return self


def per_image(label: Tensor | None, index: Tensor | None, **columns: Any) -> list[Plain]:
    """Return one dict for each image, the form that metrics take; ``label``, ``index`` and each of
    ``columns`` hold one value per image."""
    for name, values in (("label", label), ("index", index)):
        columns[name] = itertools.repeat(None) if values is None else values.tolist()
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def distillation_loss(
    logits: Tensor, teacher: Tensor, loss: str = "hard", temperature: float = 1.0
) -> Tensor:
    """Return the distillation loss between a classifier's logits and its teacher's, both
    ``(B, K)``, in float32, as in DeiT (Touvron et al., ICML 2021).

    ``"hard"`` is the cross-entropy with the class that the teacher scores highest; ``"soft"`` is
    the Kullback-Leibler divergence from the teacher's distribution, both logits divided by
    ``temperature``, multiplied by the square of ``temperature``."""
    logits = logits.float()
    teacher = teacher.float()
    if loss == "hard":
        return F.cross_entropy(logits, teacher.argmax(-1))
    student, wanted = (torch.log_softmax(x / temperature, -1) for x in (logits, teacher))
    return F.kl_div(student, wanted, log_target=True, reduction="batchmean") * temperature**2


@MODELS.register_module()
class ImageClassifier(BackboneModel):
    """A timm model with a classification loss.

    Args:
        backbone: arguments of :func:`timm.create_model`.
        label_smoothing: smoothing of the targets; with ``mixup`` the mixed targets are smoothed,
            too.
        mixup: arguments of :class:`timm.data.Mixup` (``mixup_alpha``, ``cutmix_alpha``, ``prob``,
            ``switch_prob``, ...); None: no mixing. Its random numbers come from NumPy's global
            generator, which :class:`~hypvision.engine.hooks.repeat.RepeatableSeedHook` seeds.
        test_flip: predict from the mean logits of an image and its mirror image
            (``hypvision test --tta``).
        multi_label: an image may have any number of labels: ``label`` is (B, C) of zeros and ones,
            the loss is the binary cross-entropy of each class, and the scores of the classes are
            independent probabilities.
        class_weights: see :class:`~hypvision.engine.hooks.classes.ClassWeights`.
        distillation: ``dict(teacher=dict(model_name=..., ...), loss="hard", alpha=0.5,
            temperature=1.0, size=None)``, the arguments of :func:`distillation_loss`. ``alpha`` is
            the weight of the teacher's loss, 1 - ``alpha`` that of the labels. The teacher sees the
            training images (resized to ``size`` pixels a side, if given), which must be normalised
            with its own mean and deviation. Checkpoints do not contain it.
        head_init: how a new head on trained features begins: ``"zero"``, so that its first
            gradients do not harm the features; ``"probe"``, with the logistic regression on the
            features (:class:`~hypvision.tasks.probe.LinearProbeHook`); or ``"timm"``, with timm's
            random values (EfficientNet's logits then have a deviation of 4 for 20 classes). The
            head of a network without trained features begins with timm's values.
        prototypes: arguments of :class:`~hypvision.losses.PrototypeHead` after the second
            (``dim``, ...); this head replaces the backbone's linear head, and the loss is the
            penalised Busemann loss. ``dict()``: its defaults; None: no prototypes.
        busemann: arguments of :class:`~hypvision.nn.busemann.BusemannHead` after the second
            (``c``, ``clip``); this head replaces the backbone's linear head. None: it does not.
        **kwargs: see :class:`BackboneModel`.
    """

    def __init__(
        self,
        backbone: Plain,
        label_smoothing: float = 0.0,
        mixup: Plain | None = None,
        test_flip: bool = False,
        class_weights: str | Sequence[float] | None = None,
        multi_label: bool = False,
        distillation: Plain | None = None,
        head_init: str = "zero",
        prototypes: Plain | None = None,
        busemann: Plain | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        one_of(("zero", "probe", "timm"), **{"model.head_init": head_init})
        self.num_classes: int = self.backbone.num_classes
        refuse(
            (
                not self.num_classes,
                "A classifier needs classes: set model.backbone.num_classes in the config.",
            ),
            (
                mixup is not None and multi_label,
                "Mixup mixes images with one class each: leave out mixup with multi_label=True.",
            ),
            (
                distillation is not None and multi_label,
                "A teacher's classes exclude each other: leave out distillation with "
                "multi_label=True.",
            ),
        )
        between(0, 1, label_smoothing=label_smoothing)
        self.head_init = head_init
        self.multi_label = multi_label
        self.class_weights = ClassWeights(class_weights)
        self.label_smoothing = label_smoothing
        self.test_flip = test_flip
        self.mixup: Mixup | None = None
        if mixup is not None:
            self.mixup = Mixup(
                **mixup, label_smoothing=label_smoothing, num_classes=self.num_classes
            )
        self.distillation: Plain = {}
        self.to_prototypes = prototypes is not None
        if prototypes is not None:
            others = (multi_label, mixup, label_smoothing, distillation)
            ensure(
                not any(others),
                "A head of prototypes has its own loss, for one label an image: leave out "
                "label_smoothing, mixup, multi_label and distillation.",
            )
            self._set_head("prototypes", PrototypeHead, prototypes, ("zero", "timm"))
        if busemann is not None:
            # Its ideal points are directions, which zero does not have.
            self._set_head("busemann", BusemannHead, busemann, ("timm",))
        self.has_linear_head = isinstance(self.backbone.get_classifier(), nn.Linear)
        if distillation is not None:
            self._set_teacher(**distillation)

    def _set_head(
        self, option: str, head: type[nn.Module], options: Plain, starts: tuple[str, ...]
    ) -> None:
        """Replace the backbone's linear head by another, with the arguments of a config's
        ``option``; ``starts`` are the values of ``head_init`` that it can begin with."""
        name = self.backbone.pretrained_cfg.get("classifier")
        linear = self.backbone.get_classifier()
        if not isinstance(name, str) or not isinstance(linear, nn.Linear):
            raise HypvisionError(
                f"model.{option} replaces a linear head, but the head of this backbone is "
                f"{type(linear).__name__}. Take another backbone."
            )
        ensure(
            self.head_init in starts,
            f"The head of model.{option} cannot begin with model.head_init='{self.head_init}': set "
            f"model.head_init='{starts[0]}'.",
        )
        try:
            new = head(linear.in_features, self.num_classes, **options)
        except (ValueError, TypeError) as error:
            raise HypvisionError(f"model.{option}: {error}") from error
        self.backbone.set_submodule(name, new)

    def init_weights(self) -> None:
        super().init_weights()
        if self.head_is_new and self.head_init != "timm":
            head = head_names(self.backbone)
            for name, parameter in self.backbone.named_parameters():
                if name in head:
                    nn.init.zeros_(parameter)

    def _set_teacher(
        self, teacher: Plain, loss: str = "hard", alpha: float = 0.5,
        temperature: float = 1.0, size: int | None = None,
    ) -> None:  # fmt: skip
        one_of(("hard", "soft"), **{"model.distillation.loss": loss})
        more_than(0, alpha=alpha, temperature=temperature)
        between(0, 1, alpha=alpha)
        network = create_backbone(**teacher).eval().requires_grad_(False)
        ensure(
            network.num_classes == self.num_classes,
            f"The teacher predicts {network.num_classes} classes, the model "
            f"{self.num_classes}. Set model.distillation.teacher.num_classes to the model's "
            "number, and give the teacher weights for these classes.",
        )
        # A list keeps the teacher out of the parameters and checkpoints of this module. With
        # channels last an EfficientNet-Lite0 takes 0.6 of the time on a CPU.
        self._teacher = [network.to(memory_format=torch.channels_last)]
        self.distillation = dict(loss=loss, alpha=alpha, temperature=temperature, size=size)

    def taught_loss(self, inputs: Tensor, logits: Tensor, classes: Tensor) -> dict[str, Tensor]:
        """Return the loss of the labels, ``classes``, and the loss between ``logits`` and the
        teacher's logits of the same images, each multiplied by its weight."""
        about = self.distillation
        network = self._teacher[0].to(inputs.device)
        with torch.no_grad():
            if about["size"] is not None:
                size = (about["size"], about["size"])
                inputs = F.interpolate(
                    inputs, size, mode="bicubic", align_corners=False, antialias=True
                )
            wanted = network(inputs)
        taught = distillation_loss(logits, wanted, about["loss"], about["temperature"])
        return dict(
            loss_cls=(1 - about["alpha"]) * classes, loss_distillation=about["alpha"] * taught
        )

    def forward(
        self,
        inputs: Tensor,
        label: Tensor | None = None,
        index: Tensor | None = None,
        mode: str = "tensor",
    ) -> Tensor | dict[str, Tensor] | list[Plain]:
        """Compute what mmengine's ``mode`` asks for, from images ``(B, C, H, W)``, their classes
        ``label`` and their numbers in the data set, ``index`` ``(B,)``.

        Returns:
            ``"tensor"``: logits ``(B, num_classes)``. ``"loss"``: ``dict(loss=scalar)``, or the two
                parts of the loss with ``distillation``. ``"predict"``: for each image a dict with
                ``scores`` ``(num_classes,)``, ``label`` and ``index`` (None where not given).
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        self.check_channels(inputs)
        if mode == "loss":
            return self.losses(*self.mix(inputs, label))
        if mode == "tensor":
            return self.backbone(inputs)
        return per_image(label, index, scores=self.scores(self.test_logits(inputs)).cpu())

    def losses(self, inputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the parts of the loss by name."""
        logits = self.backbone(inputs)
        classes = self.class_loss(logits, target)
        return (
            self.taught_loss(inputs, logits, classes) if self.distillation else dict(loss=classes)
        )

    def test_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits that predictions are made from; with ``test_flip`` the mean of the
        logits of an image and of its mirror image."""
        logits = self.backbone(inputs)
        return (logits + self.backbone(inputs.flip(-1))) / 2 if self.test_flip else logits

    def scores(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the classes, in float32: a softmax, or with ``multi_label``
        an independent probability for each class."""
        return logits.float().sigmoid() if self.multi_label else logits.float().softmax(-1)

    def mix(self, inputs: Tensor, label: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the images and the targets of a training step; targets are class numbers, or with
        ``mixup`` the share of each class."""
        if label is None:
            raise HypvisionError(
                "The loss of a classifier needs the labels of the images, but label is None."
            )
        if (label.ndim == 2) != self.multi_label:
            several = "several labels an image" if label.ndim == 2 else "one label an image"
            raise HypvisionError(
                f"The training data has {several}, but model.multi_label is {self.multi_label}. "
                "Set multi_label=True in model for a MultiLabelDataset, and leave it out for other "
                "data."
            )
        if self.mixup is None or not self.training or len(inputs) < 2:
            return inputs, label
        # timm mixes images in pairs, so the last image of an odd batch is left out.
        even = len(inputs) // 2 * 2
        return self.mixup(inputs[:even], label[:even])

    def class_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy with the targets of :meth:`mix`, in float32; with
        prototypes the mean Busemann loss."""
        if self.multi_label:
            target = target * (1 - self.label_smoothing) + self.label_smoothing / 2
            return F.binary_cross_entropy_with_logits(
                logits.float(), target, pos_weight=self.class_weights()
            )
        weights = self.class_weights()
        if self.to_prototypes:
            return F.nll_loss(logits.float(), target, weights)
        mixed = target.is_floating_point()
        # Divide by the sum of the weights, as for plain labels: for shares of classes PyTorch
        # divides by the number of images.
        if mixed and weights is not None:
            total = F.cross_entropy(logits.float(), target, weights, reduction="sum")
            return total / (target * weights).sum()
        smoothing = 0.0 if mixed else self.label_smoothing  # mixed targets are smoothed already
        return F.cross_entropy(logits.float(), target, weights, label_smoothing=smoothing)


@HOOKS.register_module()
class PredictionPainterHook(Hook):
    """Writes test images, with the predicted and the true class below them, into a folder
    (``hypvision test --show-dir``): at most ``limit``, evenly spaced over the data, which is sorted
    by class; small images are enlarged. File names begin with ``wrong`` or ``right``. With several
    labels an image, labels with a score of at least ``threshold`` are predicted."""

    def __init__(self, out_dir: str, limit: int = 200, threshold: float = 0.5):
        self.out_dir = Path(out_dir)
        self.limit = limit
        self.threshold = threshold

    def before_test(self, runner: Runner) -> None:
        self.chosen = set(evenly(len(runner.test_dataloader.dataset), self.limit))
        self.out_dir.mkdir(parents=True, exist_ok=True)

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: list[Plain] | None = None,
    ) -> None:
        dataset = runner.test_dataloader.dataset
        names = dataset.metainfo["classes"]
        for output in outputs or ():  # each process paints the images that it has tested
            if output["index"] not in self.chosen:
                continue
            scores = output["scores"]
            label = output["label"]
            if isinstance(label, list):
                found = (scores >= self.threshold).nonzero().flatten().tolist()
                wanted = [c for c, is_there in enumerate(label) if is_there]
            else:
                found = [int(scores.argmax())]
                wanted = [label]
            shown = ", ".join(f"{names[c]}  {100 * float(scores[c]):.0f}%" for c in found)
            true = ", ".join(str(names[c]) for c in wanted)
            verdict = "right" if found == wanted else "wrong"
            image = as_rgb(dataset.read(output["index"]))
            tile = fitted(image, max(_PAINTED, *image.size))
            name = re.sub(r"[/\\]", "-", true)[:80]  # a class may have a name such as "yes/no"
            path = below(self.out_dir, f"{verdict}_{output['index']:06d}_{name}.png")
            save_image(titled_sheet([(tile, f"{shown}\ntrue: {true}")]), path)


@HOOKS.register_module()
class ImageInputHook(Hook):
    """Writes into each checkpoint how the images are prepared that its network is tested on
    (``meta.input``) and how the network was created (``meta.network``), so that the weights can be
    used without the config (:func:`hypvision.zoo.loading.load_trained`)."""

    @staticmethod
    def _sees_images(runner: Runner) -> bool:
        return "transform" in runner.cfg.dataset("test") and "backbone" in runner.cfg.model

    def before_train(self, runner: Runner) -> None:
        transform = runner.cfg.dataset("test").get("transform")
        lost = unrecorded(transform) if self._sees_images(runner) else ""
        if lost:
            runner.logger.warning(
                f"The transform of the test data has {lost}, which checkpoints cannot record: from "
                "the weights alone, without the config, hypvision predict prepares images "
                "differently."
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        """Add the description of images and network to ``checkpoint``, in place."""
        if self._sees_images(runner):
            checkpoint["meta"]["input"] = image_input(runner.cfg)
            if runner.cfg.model.get("multi_label"):
                checkpoint["meta"]["input"]["multi_label"] = True
        backbone = runner.cfg.model.get("backbone") or {}
        # Only a timm network can be described so: a head of prototypes is described by the config.
        is_timm = isinstance(backbone, dict) and isinstance(backbone.get("model_name"), str)
        if is_timm and runner.cfg.model.get("prototypes") is None:
            arguments = json.loads(json.dumps(network_arguments(backbone), default=str))
            arguments = {
                key: value
                for key, value in arguments.items()
                if foreign_setting({key: value}) is None
            }
            checkpoint["meta"]["network"] = dict(
                model=backbone["model_name"].partition(".")[0], arguments=arguments
            )


def _paint(config: Run, folder: Path) -> None:
    metrics = [one for one in config.evaluators("test") if one.get("type") == "MultiLabelAP"]
    threshold = metrics[0].get("threshold", 0.5) if metrics else 0.5
    config.add_hook(type="PredictionPainterHook", out_dir=str(folder), threshold=threshold)


TEST_OPTIONS["ImageClassifier"] = TestOptions(
    lambda config: setattr(config.model, "test_flip", True), _paint
)
RUN_HOOKS.append("ImageInputHook")


def _predictor(model: ImageClassifier, config: Run, request: Request) -> Predictor:
    """Return the predictor of a trained classifier, with the transform of the test data and the
    class names in the checkpoint."""
    if request.classes is not None:
        raise HypvisionError(f"The classes of '{request.model}' are fixed: leave out --classes.")
    dataset = config.dataset("test") or config.dataset("val")
    names = (model.dataset_meta or {}).get("classes")
    source = f"the checkpoint {request.weights}{'' if names else ', which has no names'}"
    names = tuple(names or (str(i) for i in range(model.num_classes)))
    known = Known(names, source, input_size(config)[1:])
    transform = build_transform(dict(dataset["transform"]))
    shown = label_score(request) if model.multi_label else None
    channels = dataset.get("channels", 3)
    found: Any = model  # has the attribute familiar, read from its checkpoint
    judged = None if found.familiar is None else model.backbone
    known = replace(known, familiar=found.familiar)
    predictor = classifier(
        model.test_logits, transform, known, request.device, shown, channels, judged
    )
    return replace(predictor, network=model.backbone)


PREDICTORS.update(ImageClassifier=_predictor, HierarchyClassifier=_predictor)
