"""From a model to what :func:`hypvision.predict` runs: a function of an image, and one of a batch.

A model is named as everywhere: timm's name, weights of the zoo, a release, or the config of a training with its
checkpoint. What mmengine, mmdet and mmseg add is in :mod:`hypvision.engine.predicting` and in the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.sources import find, is_address
from hypvision.checkpoints.timm_models import create_model
from hypvision.errors import HypvisionError, did_you_mean
from hypvision.inference.results import Classes, Result
from hypvision.plugins import plugin
from hypvision.shipped import find_config, shipped_configs
from hypvision.zoo.loading import load

__all__ = ["Predictor", "Request", "classifier", "load_predictor", "zero_shot"]


@dataclass(frozen=True)
class Predictor:
    """A model ready for images.

    Attributes:
        prepare: an image, RGB, to what the model takes; runs in threads.
        find: a list of these to a result for each.
        batch: whether several images at a time are faster; detectors and segmenters take images of unequal sizes.
    """

    prepare: Callable[[Image.Image], Any]
    find: Callable[[list[Any]], Sequence[Result]]
    batch: bool = True


@dataclass(frozen=True)
class Request:
    """Which model, and what to look for.

    Attributes:
        model: see :func:`hypvision.predict`.
        weights: checkpoint file, or an address.
        arguments: of a timm model.
        classes: of an open-vocabulary model.
        things: of them those that are counted, for panoptic ones.
        score: boxes of lower scores are left out.
        device: where to compute.
    """

    model: str | Path
    weights: str | Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    classes: str | Path | Sequence[str] | None = None
    things: str | Path | Sequence[str] | None = None
    score: float = 0.3
    device: str = "cpu"


def load_predictor(request: Request) -> Predictor:
    """The predictor that a request asks for.

    Raises:
        HypvisionError: no such model, weights that are missing or do not fit, or options that it does not take.
    """
    import timm

    import hypvision.models  # noqa: F401 - registers them in timm

    name = str(request.model)
    if name.endswith((".py", ".json")) or (not timm.is_model(name) and find_config(name) is not None):
        return plugin("predictor of a config")(request)
    if not name.startswith("local-dir:") and (is_address(name) or "/" in name or name in builtin_index().records):
        if request.weights is not None:
            raise HypvisionError(f"'{name}' are trained weights already: leave out --weights.")
        return _of_the_zoo(request)
    if not name.startswith("local-dir:") and not timm.is_model(name):
        known = [*timm.list_models(), *builtin_index().records, *shipped_configs()]
        raise HypvisionError(
            f"There is no model '{name}'.{did_you_mean(name, known)} Give a name of timm, of `hypvision zoo list`, or "
            "a config, by its file or name."
        )
    _refuse_classes(request)
    if request.weights is not None and not is_address(request.weights):
        network = load(request.weights, model=name, **request.arguments)
    else:
        overlay = {} if request.weights is None else dict(pretrained_cfg_overlay=_overlay(request))
        network = _published(name, {**request.arguments, **overlay})
        _refuse_new_head(network, request)
    return _timm_predictor(network, request.device)


def _refuse_new_head(network: nn.Module, request: Request) -> None:
    known = network.pretrained_cfg.get("num_classes")
    if known and network.num_classes != known:
        raise HypvisionError(
            f"With num_classes={network.num_classes} '{request.model}' gets a new head, which has learned nothing; its "
            f"weights tell {known} classes. Leave num_classes out, or give the checkpoint of a training as weights."
        )


def _overlay(request: Request) -> dict[str, Any]:
    from hypvision.checkpoints.pretrained import record_overlay
    from hypvision.checkpoints.sources import resolve

    index, record = find(str(request.weights))
    if record.task != "classification" or record.model != str(request.model).partition(".")[0]:
        raise HypvisionError(
            f"'{request.weights}' are weights of {record.model} ({record.task}): use --model {request.weights} alone."
        )
    return record_overlay(record, resolve(record, index))


def _published(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return create_model(name, pretrained=True, **arguments).eval()
    except HypvisionError:
        raise
    except Exception as error:  # of the download, whose client raises its own errors; or of the arguments
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise HypvisionError(
            f"The model '{name}' has no weights that can be had ({reason.rstrip('.')}). Give a checkpoint with "
            "--weights FILE, or a name of `hypvision zoo list`."
        ) from error


def _refuse_classes(request: Request) -> None:
    if request.classes is not None:
        raise HypvisionError(
            f"The classes of '{request.model}' are fixed: leave out --classes. Open-vocabulary models take them: "
            "hypvision zoo list --task zero-shot, or a config of configs/hyperclip."
        )


def _of_the_zoo(request: Request) -> Predictor:
    name = str(request.model)
    try:
        _, record = find(name)
    except HypvisionError as error:
        if not name.startswith("hf-hub:"):
            raise
        raise HypvisionError(
            f"{error} A repository of timm's has none: fetch it (hf download USER/REPO --local-dir DIR) and give "
            "local-dir:DIR."
        ) from error
    if record.task == "zero-shot":
        from hypvision.clip.models import create_clip
        from hypvision.clip.open_vocabulary import OpenVocabularyCLIP

        model = OpenVocabularyCLIP()
        address = name if is_address(name) else f"zoo:{name}"
        model.build_clip(create_clip(record.model, address), tune="frozen", classes=request.classes, dense=False)
        return zero_shot(model.to(request.device).eval(), request)
    _refuse_classes(request)
    if record.task == "classification":
        network = load(name, **request.arguments)
        _refuse_new_head(network, request)
        return _timm_predictor(network, request.device, record.classes)
    return plugin(f"predictor of {record.task}")(load(name, device=request.device), request)


# What predictors are made of


def _timm_predictor(network: nn.Module, device: str, names: Sequence[str] = ()) -> Predictor:
    from timm.data import create_transform, resolve_model_data_config

    transform = create_transform(**resolve_model_data_config(network))
    names = names or network.pretrained_cfg.get("label_names") or _imagenet(network)
    return classifier(network.to(device).eval(), transform, tuple(names), device)


def _imagenet(network: nn.Module) -> list[str]:
    """ImageNet's words, where the head has its classes; numbers elsewhere."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(network)
    if not subset:
        return [str(i) for i in range(network.num_classes)]
    info = ImageNetInfo(subset)
    return [info.index_to_description(i) for i in range(info.num_classes())]


def classifier(
    logits: Callable[[Tensor], Tensor], transform: Callable[[Image.Image], Tensor], names: Sequence[str], device: str
) -> Predictor:
    """A predictor of classes from a function of images ``(B, C, H, W)`` to logits."""

    def find(images: list[Tensor]) -> list[Classes]:
        scores = logits(torch.stack(images).to(device, non_blocking=True)).float().softmax(-1).cpu().numpy()
        if scores.shape[-1] != len(names):
            raise HypvisionError(f"The model has {scores.shape[-1]} outputs, but {len(names)} class names are known.")
        return [Classes(score, tuple(names)) for score in scores]

    return Predictor(transform, find)


def zero_shot(model: Any, request: Request) -> Predictor:
    """A predictor of classes by their names, from an :class:`~hypvision.clip.open_vocabulary.OpenVocabularyCLIP`.

    Raises:
        HypvisionError: no classes.
    """
    from hypvision.clip.towers import encode_image
    from hypvision.clip.views import view_of

    if request.classes is not None:
        model.set_classes(request.classes)
    if not model.classes:
        raise HypvisionError(f"'{request.model}' compares images with words: give --classes \"cat, dog, ...\".")

    def logits(pixels: Tensor) -> Tensor:
        embedded = encode_image(model.clip, (pixels.float() - model.mean) / model.std, normalize=True)
        text = F.normalize(model.encode_classes().float().mean(1), dim=-1)
        return model.clip.logit_scale.exp() * embedded.float() @ text.T

    return classifier(logits, view_of(model.clip), model.classes, request.device)
