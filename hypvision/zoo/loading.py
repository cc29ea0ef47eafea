"""Models with their trained weights: :func:`load`, for records of the zoo and for checkpoints of
trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import timm
import torch
from torch import nn

from hypvision.checkpoints.match import filtered, load_into
from hypvision.checkpoints.pretrained import record_overlay
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import find, resolve
from hypvision.checkpoints.storage import foreign_setting
from hypvision.checkpoints.types import Weights
from hypvision.io.checks import ensure
from hypvision.io.errors import HypvisionError, did_you_mean, one_line, require
from hypvision.io.plugins import PLUGINS, plugin
from hypvision.io.records import is_plain
from hypvision.io.shipped import is_config
from hypvision.io.types import Plain, StrPath, Values
from hypvision.models.timm_models import create_model
from hypvision.zoo.familiar import familiar_of


class TimmModel(nn.Module):
    """The type of timm's models for type checkers: a module with these further attributes.

    Attributes:
        pretrained_cfg: normalisation, input size, class names (``label_names``) and more of the
            weights.
        num_classes: outputs of the head.
        reset_classifier: replaces the head by one of so many classes; 0: none.
    """

    pretrained_cfg: Plain
    num_classes: int
    reset_classifier: Callable[[int], None]


def timm_model(name: str, **arguments: Any) -> TimmModel:
    """:func:`hypvision.models.timm_models.create_model`, with the type of what it gives."""
    return cast(TimmModel, create_model(name, **arguments))


def load(
    name: StrPath,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    model: str | None = None,
    **overrides: Any,
) -> nn.Module:
    """A model with its trained weights, in eval mode.

    Args:
        name: ``hypvision zoo list`` lists them, e.g. ``"hcformer_nano.cifar10"``; or a release, see
            :func:`hypvision.checkpoints.sources.find`: ``"hf-hub:USER/REPO"``,
            ``"file:///folder#NAME"``; or, with ``model``, the checkpoint file of a training.
        device: where to put it.
        dtype: cast it to this type; default float32.
        model: the model whose weights ``name``, a file, holds: timm's name of a classifier (see
            :func:`load_trained`), the name of a CLIP model (see
            :func:`hypvision.clip.models.create_clip`), or the config of a training of any task.
        **overrides: for a classifier, arguments of :func:`timm.create_model` that differ from the
            trained model's, such as ``num_classes=5`` (a new head, without class names),
            ``features_only=True`` or ``drop_path_rate=0.1``.

    Returns:
        For classification a timm model, with ``pretrained_cfg`` (its normalisation, input size and
        class names; of a checkpoint file as much of that as its training wrote there); for
        segmentation and detection the mmseg or mmdet model, with ``dataset_meta``; for retrieval
        the :class:`~hypvision.tasks.MetricLearner`, which gives points; for zero-shot an open_clip
        model with its ``tokenizer``.
    """
    if model is not None:
        return _from_file(name, model, overrides).to(device=device, dtype=dtype).eval()
    ensure(
        not Path(name).is_file(),
        f"'{name}' is a file, which does not say what model it is of. Add it: "
        f"hypvision.load('{name}', model='hcformer_nano', ...), with the arguments of "
        "model.backbone in the config of the training; or model=CONFIG, that config itself.",
    )
    index, record = find(str(name))
    if record.task == "retrieval":
        require("mmengine", "mm")
    if f"model of {record.task}" in PLUGINS:
        network: nn.Module = plugin(f"model of {record.task}")(
            record, resolve(record, index), overrides
        )
    else:
        network = classifier(index, record, overrides)
    return network.to(device=device, dtype=dtype).eval()


def _from_file(path: StrPath, model: str, arguments: Values) -> nn.Module:
    from hypvision.clip.models import is_clip, with_tokenizer

    if not timm.is_model(str(model).partition(".")[0]):
        if is_config(model):
            ensure(
                not arguments,
                f"The config '{model}' contains the arguments of its model: leave out "
                f"{dict(arguments)}.",
            )
            require("mmengine", "mm")
            return plugin("model of a config")(model, path)
        if is_clip(model):
            return with_tokenizer(model, path, arguments)
    return load_trained(path, model, arguments)


def classifier(index: Index, record: Record, overrides: Values) -> TimmModel:
    """The timm model of a record with its weights; see :func:`load`."""
    ensure(
        timm.is_model(record.model),
        f"'{record.name}' needs the model '{record.model}', which this hypvision and timm do "
        "not have. Update them.",
    )
    overlay = {
        **record_overlay(record, resolve(record, index)),
        **overrides.get("pretrained_cfg_overlay", {}),
    }
    arguments = {"num_classes": len(record.classes), **as_tuples(record.arguments), **overrides}
    arguments["pretrained_cfg_overlay"] = overlay
    try:
        network = timm_model(record.model, pretrained=True, **arguments)
    except (TypeError, ValueError) as error:
        raise HypvisionError(
            f"'{record.name}' does not accept {dict(overrides)}: {error}."
        ) from error
    except RuntimeError as error:
        reason = one_line(error, 400)
        raise HypvisionError(
            f"The weights '{record.name}' do not fit {dict(overrides)}: {reason}."
        ) from error
    # a new head knows none of them
    if getattr(network, "num_classes", len(record.classes)) != len(record.classes):
        names = overrides.get("pretrained_cfg_overlay", {}).get("label_names")
        own = {"num_classes": network.num_classes, "label_names": names}
        network.pretrained_cfg = {**network.pretrained_cfg, **own}
    return network


def as_tuples(arguments: Values) -> Plain:
    """Arguments with the lists of YAML as the tuples that constructors take."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()
    }


def images_of(model: TimmModel, arguments: Values, size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of the images of a model with these arguments; ``size`` is their
    side."""
    channels, *sides = model.pretrained_cfg["input_size"]
    sides = size or arguments.get("img_size") or sides
    height, width = (sides, sides) if isinstance(sides, int) else sides
    return arguments.get("in_chans", channels), height, width


def known_model(name: str) -> None:
    """Refuse a model that timm does not know."""
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise HypvisionError(
            f"There is no model '{name}'.{hint} timm.list_models() lists all (after import "
            "hypvision)."
        )
    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        model, _, tag = name.partition(".")
        raise HypvisionError(
            f"The model '{model}' has no weights "
            f"'{tag}'.{did_you_mean(name, timm.list_pretrained(f'{model}.*'))} "
            "timm.list_pretrained() lists all."
        ) from error


def load_trained(path: StrPath, model: str, arguments: Values | None = None) -> TimmModel:
    """A timm model with the weights in a checkpoint.

    Args:
        path: anything that :func:`hypvision.checkpoints.read.read` takes: a checkpoint of
            ``hypvision train`` (the network of a classifier), of timm's training, of the official
            code, or a state dict.
        model: name in :func:`timm.list_models`.
        arguments: of :func:`timm.create_model`, as ``model.backbone`` of the training's config has
            them; by default those that a training of hypvision wrote into the file, and as many
            classes as its head has.

    Returns:
        The network; its ``familiar`` is a :class:`~hypvision.zoo.familiar.Familiar`, or None.
    """
    known_model(model)
    checkpoint = read(path)
    arguments = {**trained_arguments(checkpoint, model), **(arguments or {})}
    weights = network_weights(checkpoint)
    if "num_classes" not in arguments:
        classes = _count_classes(model, weights, arguments)
        if classes is not None:
            arguments["num_classes"] = classes
    try:
        network = timm_model(model, **arguments)
    except (TypeError, ValueError) as error:
        raise HypvisionError(
            f"The model '{model}' does not accept {arguments}: {error}."
        ) from error
    load_into(
        network, filtered(network, weights), path, f"the model '{model}'",
        "Give the model that it was trained with and its arguments, as in model.backbone of the "
        "training's config.",
    )  # fmt: skip
    network.pretrained_cfg = {
        **network.pretrained_cfg,
        **training_cfg(checkpoint, network.num_classes),
    }
    holder: Any = network
    holder.familiar = familiar_of(checkpoint, path)
    return network


CROP = ("crop_pct", "interpolation", "crop_mode")  # how timm's pipeline resizes and crops
SEVERAL_LABELS = "several labels an image"  # a note in timm's pretrained_cfg


def trained_arguments(checkpoint: Values, model: str) -> Plain:
    """The arguments of timm's constructor by which a training of hypvision made this model
    (``meta.network``). Some, such as HCFormer's ``curvature`` or a Hi-Mapper's ``kv``, leave no
    trace in the names and shapes of weights.

    None of another model's, nor any that refer to files.
    """
    given = _part(_part(checkpoint, "meta"), "network")
    if given.get("model") != model.partition(".")[0]:
        return {}
    arguments = given.get("arguments")
    if (
        not isinstance(arguments, dict)
        or not is_plain(arguments)
        or foreign_setting(arguments) is not None
    ):
        return {}
    return as_tuples(arguments)


def training_cfg(checkpoint: Values, classes: int) -> Plain:
    """The entries for timm's ``pretrained_cfg`` that the checkpoint of a training contains: the
    number of classes and their names, the size and normalisation of the images."""
    meta = _part(checkpoint, "meta")
    given = _part(meta, "input")
    names: Any = _part(meta, "dataset_meta").get("classes")
    config: Plain = {"num_classes": classes}
    listed = isinstance(names, (list, tuple)) and len(names) == classes
    if listed and all(isinstance(name, str) for name in names):
        config["label_names"] = tuple(names)
    kept = {"mean": "mean", "std": "std", **{key: key for key in CROP}, "size": "input_size"}
    config |= as_tuples({name: given[key] for key, name in kept.items() if key in given})
    if given.get("multi_label") is True:
        config["notes"] = (SEVERAL_LABELS,)
    return config


def _part(content: Values, name: str) -> Values:
    """A mapping in what was read; an empty one where there is none."""
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


def _count_classes(model: str, weights: Weights, arguments: Values) -> int | None:
    """How many classes the head in a checkpoint has; None if it has no head that is known."""
    named = arguments.get("backbone", model)  # a Hi-Mapper's head is that of its backbone
    config = timm.get_pretrained_cfg(named) if isinstance(named, str) else None
    head = getattr(config, "classifier", None) or "head"
    heads = [head] if isinstance(head, str) else list(head)
    known = [f"{prefix}{name}.weight" for name in heads for prefix in ("", "trunk.")] + [
        "decoder.z",
        "predictor.z",
    ]
    return next((len(weights[name]) for name in known if name in weights), None)
