"""Build the timm models that `hypvision explain` draws: without a head, with weights from the
checkpoint of any task."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import timm
import torch

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.match import filtered, load_into
from hypvision.checkpoints.pretrained import timm_cfg
from hypvision.checkpoints.read import network_weights, read
from hypvision.checkpoints.sources import find, is_address, resolve
from hypvision.checkpoints.storage import read_header
from hypvision.io import HypvisionError, Plain, StrPath, Values, ensure, name_or_path

from .loading import TimmModel, as_tuples, network_of, timm_model, trained_arguments, training_cfg

# Arguments of a config's backbone that are not of the network, or that only its training needs.
_NOT_THE_NETWORK = {
    "type", "model_name", "out_indices", "pretrained", "checkpoint_path", "frozen_stages",
    "norm_eval", "with_cp", "pad_multiple", "unused", "feature_cls", "init_cfg", "drop_rate",
    "drop_path_rate", "proj_drop_rate", "num_classes",
}  # fmt: skip


def model_and_weights(name: str, weights: StrPath | None = None) -> tuple[str, StrPath | None]:
    """Return timm's name of a model, and the address of its weights.

    Args:
        name: name of a model, or of trained weights: a record of the zoo
            (``"hcformer_nano.cifar10"``, also with ``"zoo:"``), or a release.
        weights: weights of the model; None if ``name`` is that of trained weights.
    """
    if is_address(name) and weights is not None:
        raise HypvisionError(f"'{name}' are trained weights already: leave out --weights.")
    if weights is not None or not (is_address(name) or name in builtin_index().records):
        return name, weights
    return find(name)[1].model, name if is_address(name) else f"zoo:{name}"


def explained_models() -> list[str]:
    """Return the names of the timm models that cluster or have a tree of parts."""
    return timm.list_models(["hcformer*", "*himapper*"])


def side_seen(model: TimmModel, weights: StrPath | None) -> int:
    """Return the short side of the images for a model of :func:`build_model`: that of the zoo's
    weights, or 224."""
    return int(model.pretrained_cfg["input_size"][1]) if is_address(str(weights)) else 224


def build_model(
    name: str, weights: StrPath | None = None, arguments: Values | None = None
) -> TimmModel:
    """Build a clustering timm model without a classifier head, in evaluation mode.

    Args:
        name: name in timm, or name of trained weights, see :func:`model_and_weights`.
        weights: checkpoint, see :func:`load_weights`, or weights of the zoo (``"zoo:NAME"``,
            ``"hf-hub:USER/REPO"``), which also give the model's arguments and normalisation. None:
            the weights that ``name`` means, or random weights drawn with seed 0.
        arguments: arguments of the model's constructor, e.g. ``dict(patch_size=2, img_size=32)``.
    """
    name_or_path(model=name, weights="" if weights is None else weights)
    name, weights = model_and_weights(name, weights)
    config: Plain = {}
    checkpoint: Plain | None = None
    own: Plain = {}
    if weights is not None and is_address(str(weights)):
        weights, own, config = _zoo_weights(str(weights), name)
    elif weights is not None:
        checkpoint = read(weights)
        own = trained_arguments(checkpoint, name)
    name, of_record = network_of(name)
    model = _clustering(name, {"num_classes": 0, **of_record, **own, **(arguments or {})})
    if weights is not None:
        load_weights(model, weights, checkpoint)
    if config:
        model.pretrained_cfg = {**model.pretrained_cfg, **config}
    return model.eval()


def _clustering(name: str, arguments: Plain) -> TimmModel:
    """Return a model that clusters, with random weights drawn with seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = _create(name, arguments)
        except (TypeError, ValueError) as error:
            raise HypvisionError(
                f"The model '{name}' does not accept --model-args: {error}"
            ) from error
    if not hasattr(model, "forward_assignments") and not hasattr(model, "forward_with_hierarchy"):
        known = ", ".join(explained_models())
        raise HypvisionError(
            f"The model '{name}' does not cluster, so there is nothing to draw. Use one of: "
            f"{known}."
        )
    return model


def _zoo_weights(address: str, name: str) -> tuple[Path, Plain, Plain]:
    """Return the verified file of a record, the arguments of its network, and the entries of timm's
    config about its images."""
    index, record = find(address)
    ensure(
        timm.is_model(record.model),
        f"'{record.name}' is based on the CLIP '{record.model}', which does not cluster. For a "
        "CLIP the way from an image to the root can be drawn: --clip NAME --texts ...",
    )
    ensure(
        not (timm.is_model(name) and name.partition(".")[0] != record.model),
        f"The weights '{address}' are of the model {record.model}: use --model {record.model}.",
    )
    path = resolve(record, index)
    arguments = record.arguments
    if record.task != "classification":
        # The header has the config of the whole model, whose backbone has arguments of timm and of
        # the wrapper.
        backbone = (read_header(path).get("model") or {}).get("backbone") or {}
        arguments = network_arguments(backbone)
    config = timm_cfg(record)
    seen = {key: config[key] for key in ("input_size", "mean", "std", "interpolation")}
    return path, as_tuples(arguments), seen


def network_arguments(backbone: Values) -> Plain:
    """Return the arguments of the timm model in a config's ``model.backbone``, without those of the
    head and of the training."""
    return as_tuples({key: value for key, value in backbone.items() if key not in _NOT_THE_NETWORK})


def _create(name: str, arguments: Plain) -> TimmModel:
    """Build a timm model; a Hi-Mapper is made to take images of any shape if its backbone has an
    argument for this."""
    if "himapper" in name:
        for flexible in ("dynamic_img_size", "strict_img_size"):
            with suppress(TypeError):
                return timm_model(name, **{flexible: flexible.startswith("dynamic"), **arguments})
    return timm_model(name, **arguments)


def load_weights(model: TimmModel, path: StrPath, checkpoint: Values | None = None) -> None:
    """Load a checkpoint into a timm model; the classifier head may be missing in it or differ. If a
    training of hypvision wrote the size and normalisation of images into the checkpoint, they are
    set in the model's ``pretrained_cfg``.

    Args:
        model: the model.
        path: anything that :func:`hypvision.checkpoints.read.read` takes: the checkpoint of a
            training by hypvision for any task, a plain state dict, or the official checkpoint of
            the method.
        checkpoint: content of the checkpoint if it was read already; None: it is read from
            ``path``.
    """
    checkpoint = read(path) if checkpoint is None else checkpoint
    given = filtered(model, network_weights(checkpoint))
    head = f"{model.pretrained_cfg.get('classifier') or 'head'}."
    load_into(
        model, given, path, f"the model {type(model).__name__}",
        "Give the --model that it was trained with, and its arguments: --model-args KEY=VALUE ... "
        "as in model.backbone of its config.",
        extra=True, optional=lambda name: name.startswith(head),
    )  # fmt: skip
    model.pretrained_cfg = {**model.pretrained_cfg, **training_cfg(checkpoint, model.num_classes)}
