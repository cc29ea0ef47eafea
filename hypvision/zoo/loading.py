"""Load models with their trained weights: records of the zoo and checkpoints of trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import timm
import torch
from torch import nn

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.match import filtered, load_into
from hypvision.checkpoints.pretrained import record_overlay, timm_cfg
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import find, resolve
from hypvision.checkpoints.types import Weights
from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    Values,
    did_you_mean,
    ensure,
    name_or_path,
    one_line,
    require,
)
from hypvision.io.plugins import PLUGINS
from hypvision.io.records import foreign_setting, is_plain
from hypvision.io.shipped import is_config
from hypvision.models.timm_models import create_model

from .familiar import familiar_of


def no_model(name: str, others: Iterable[str] = (), advice: str = "") -> HypvisionError:
    """Return the error for a name that neither timm nor the zoo has; ``others`` are further names
    that may have been meant, and ``advice`` ends the sentence of what to give."""
    if Path(name).is_dir():
        return HypvisionError(_folder(name))
    known = {*timm.list_models(), *builtin_index().records, *others} - {name}
    return HypvisionError(
        f"There is no model '{name}'.{did_you_mean(name, known)} Give a name of timm, or of "
        f"`hypvision zoo list`{advice}."
    )


def _folder(name: str) -> str:
    """Return the message for a folder in place of a model."""
    return (
        f"'{name}' is a folder, not a model. `hypvision train {name}` trains a model on the images "
        "in it and names its config and its weights: give the config as --model with --weights."
    )


class TimmModel(nn.Module):
    """The type of timm's models for type checkers: a module with further attributes.

    Attributes:
        pretrained_cfg: facts about the weights: normalisation, input size, class names
            (``label_names``) and more.
        num_classes: number of outputs of the head.
        reset_classifier: function that replaces the head by one with this number of classes; 0: no
            head.
    """

    pretrained_cfg: Plain
    num_classes: int
    reset_classifier: Callable[[int], None]


def timm_model(name: str, **arguments: Any) -> TimmModel:
    """Create a timm model by :func:`hypvision.models.timm_models.create_model`, with its type for
    type checkers."""
    return cast(TimmModel, create_model(name, **arguments))


def load(
    name: StrPath,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    model: str | None = None,
    **overrides: Any,
) -> nn.Module:
    """Return a model with its trained weights, in evaluation mode.

    Args:
        name: name of the weights in ``hypvision zoo list``, e.g. ``"hcformer_nano.cifar10"``; or a
            release, see :func:`hypvision.checkpoints.sources.find`: ``"hf-hub:USER/REPO"``,
            ``"file:///folder#NAME"``; or, with ``model``, the checkpoint file of a training.
        device: device of the model.
        dtype: type of the model's numbers; default float32.
        model: the model that the file ``name`` holds the weights of: timm's name of a classifier
            (see :func:`load_trained`), the name of a CLIP model (see
            :func:`hypvision.clip.models.create_clip`), or the config of a training for any task.
        **overrides: for a classifier, arguments of :func:`timm.create_model` that differ from the
            trained model's, such as ``num_classes=5`` (a new head, without class names),
            ``features_only=True`` or ``drop_path_rate=0.1``.

    Returns:
        For classification a timm model, with ``pretrained_cfg`` (normalisation, input size and
            class names; for a checkpoint file as many of these as its training wrote into it); for
            segmentation and detection the mmseg or mmdet model, with ``dataset_meta``; for
            retrieval the :class:`~hypvision.tasks.MetricLearner`, which returns points; for
            zero-shot an open_clip model with its ``tokenizer``.
    """
    name_or_path(name=name)
    if model is not None:
        name_or_path(model=model)
        return _from_file(name, str(model), overrides).to(device=device, dtype=dtype).eval()
    ensure(
        not Path(name).is_file(),
        f"'{name}' is a file, which does not name its model. Add the model: "
        f"hypvision.load('{name}', model='hcformer_nano', ...), with the arguments of "
        "model.backbone in the config of the training; or model=CONFIG, the path of that config.",
    )
    index, record = find(str(name))
    if record.task == "retrieval":
        require("mmengine", "mm")
    if f"model of {record.task}" in PLUGINS:
        build: Callable[..., nn.Module] = resolve_name(PLUGINS[f"model of {record.task}"])
        network = build(record, resolve(record, index), overrides)
    else:
        network = classifier(index, record, overrides)
    return network.to(device=device, dtype=dtype).eval()


def _from_file(path: StrPath, model: str, arguments: Values) -> nn.Module:
    from hypvision.clip.models import is_clip, with_tokenizer

    if not timm.is_model(model.removeprefix("zoo:").partition(".")[0]):
        if is_config(model):
            ensure(
                not arguments,
                f"The config '{model}' contains the arguments of its model: leave out "
                f"{dict(arguments)}.",
            )
            require("mmengine", "mm")
            return resolve_name(PLUGINS["model of a config"])(model, path)
        if is_clip(model):
            return with_tokenizer(model, path, arguments)
    return load_trained(path, model, arguments)


def classifier(index: Index, record: Record, overrides: Values) -> TimmModel:
    """Return the timm model of a record with its weights; see :func:`load`."""
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
            f"'{record.name}' does not accept {dict(overrides)}: {error}. Correct the arguments."
        ) from error
    except RuntimeError as error:
        reason = one_line(error, 400)
        raise HypvisionError(
            f"The weights '{record.name}' do not fit {dict(overrides)}: {reason}. Leave out "
            "arguments that change their shapes."
        ) from error
    # A head with another number of classes has none of the trained class names.
    if getattr(network, "num_classes", len(record.classes)) != len(record.classes):
        names = overrides.get("pretrained_cfg_overlay", {}).get("label_names")
        own = {"num_classes": network.num_classes, "label_names": names}
        network.pretrained_cfg = {**network.pretrained_cfg, **own}
    return network


def as_tuples(arguments: Values) -> Plain:
    """Return arguments in which YAML's lists are tuples, as constructors take them."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()
    }


def images_of(model: TimmModel, arguments: Values, size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width of the images for a model with these arguments; ``size`` is
    the side of the images, or None."""
    channels, *sides = model.pretrained_cfg["input_size"]
    sides = size or arguments.get("img_size") or sides
    height, width = (sides, sides) if isinstance(sides, int) else sides
    return arguments.get("in_chans", channels), height, width


def known_model(name: str) -> None:
    """Raise an error for a model, or a tag of weights, that timm does not know."""
    if not timm.is_model(name):
        ensure(not Path(name).is_dir(), _folder(name))
        hint = did_you_mean(name, timm.list_models())
        raise HypvisionError(
            f"There is no model '{name}'.{hint} timm.list_models() lists all (after import "
            "hypvision)."
        )
    if not _has_tag(name):
        model, _, tag = name.partition(".")
        raise HypvisionError(
            f"The model '{model}' has no weights "
            f"'{tag}'.{did_you_mean(name, timm.list_pretrained(f'{model}.*'))} "
            "timm.list_pretrained() lists all."
        )


def _has_tag(name: str) -> bool:
    """Return whether timm knows the tag in the name of one of its models, ``MODEL.TAG``; True
    without a tag."""
    try:
        timm.models.get_pretrained_cfg(name)
    except RuntimeError:
        return False
    return True


def network_of(name: str) -> tuple[str, Plain]:
    """Return timm's name of a network, and its arguments, for the name of a model of timm or of a
    classifier of the zoo; then the arguments are those of the record, with its images.

    Raises:
        HypvisionError: there is no such model.
    """
    record = builtin_index().records.get(name.removeprefix("zoo:"))
    if record is None or record.task != "classification":
        known_model(name)
        return name, {}
    if _has_tag(record.name):
        return record.name, {}
    config = timm_cfg(record)
    images = {key: config[key] for key in ("input_size", "mean", "std", *CROP)}
    return record.model, {**as_tuples(record.arguments), "pretrained_cfg_overlay": images}


def load_trained(path: StrPath, model: str, arguments: Values | None = None) -> TimmModel:
    """Return a timm model with the weights of a checkpoint.

    Args:
        path: anything that :func:`hypvision.checkpoints.read.read` takes: a checkpoint of
            ``hypvision train`` (the network of a classifier), of timm's training, of the official
            code, or a state dict.
        model: name of the model in :func:`timm.list_models`, or of a classifier of the zoo, which
            means its network.
        arguments: arguments of :func:`timm.create_model`, as ``model.backbone`` of the training's
            config has them; default: those that a training of hypvision wrote into the file, with
            the number of classes of its head.

    Returns:
        The network; its attribute ``familiar`` is a :class:`~hypvision.zoo.familiar.Familiar`, or
            None.
    """
    name_or_path(weights=path, model=model)
    model, own = network_of(str(model))
    checkpoint = read(path)
    arguments = {**own, **trained_arguments(checkpoint, model), **(arguments or {})}
    weights = network_weights(checkpoint)
    if "num_classes" not in arguments:
        classes = _count_classes(model, weights, arguments)
        if classes is not None:
            arguments["num_classes"] = classes
    try:
        network = timm_model(model, **arguments)
    except (TypeError, ValueError) as error:
        raise HypvisionError(
            f"The model '{model}' does not accept {arguments}: {error}. Correct the arguments."
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


# entries that say how timm's pipeline resizes and crops
CROP = ("crop_pct", "interpolation", "crop_mode")
# note in timm's pretrained_cfg for a model of several labels
SEVERAL_LABELS = "several labels an image"


def trained_arguments(checkpoint: Values, model: str) -> Plain:
    """Return the arguments of timm's constructor with which a training of hypvision made this model
    (``meta.network``). Some, such as HCFormer's ``curvature`` or a Hi-Mapper's ``kv``, leave no
    trace in the names and shapes of weights.

    The dict is empty if the arguments are those of another model, or if any of them refers to a
    file.
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
    """Return the entries for timm's ``pretrained_cfg`` that the checkpoint of a training contains:
    the number of classes and their names, the size and normalisation of the images."""
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
    """Return the mapping under a name in the content of a file; an empty one if there is none."""
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


def head_of(path: StrPath, model: str, arguments: Values | None = None) -> int | None:
    """Return the number of classes of the head in a checkpoint of a timm model, which
    :func:`load_trained` loads; None if it holds no head, as for other tasks than
    classification."""
    checkpoint = read(path)
    given = {**trained_arguments(checkpoint, model), **(arguments or {})}
    return _count_classes(model, network_weights(checkpoint), given)


def _count_classes(model: str, weights: Weights, arguments: Values) -> int | None:
    """Return the number of classes of the head in a checkpoint; None if it has no known head."""
    # The head of a Hi-Mapper is that of its backbone.
    named = arguments.get("backbone", model)
    config = timm.get_pretrained_cfg(named) if isinstance(named, str) else None
    head = getattr(config, "classifier", None) or "head"
    heads = [head] if isinstance(head, str) else list(head)
    known = [f"{prefix}{name}.weight" for name in heads for prefix in ("", "trunk.")] + [
        "decoder.z",
        "predictor.z",
    ]
    return next((len(weights[name]) for name in known if name in weights), None)
