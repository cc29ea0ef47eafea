"""Build a model or a predictor from a training's config and checkpoint."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from hypvision.checkpoints.language import language_of
from hypvision.checkpoints.match import load_trained
from hypvision.inference.predictors import Predictor, Request
from hypvision.io import HypvisionError, Plain, StrPath
from hypvision.zoo.familiar import familiar_of

from .checkpoint import load
from .checks import check_channels, readable_errors
from .config import Run, import_extensions, leave_out_pretrained, load_config
from .extensions import PREDICTORS, PREPARATIONS
from .hooks import take_templates


def predictor_of(request: Request) -> Predictor:
    """Return the predictor for a request whose model is a config."""
    if request.arguments:
        raise HypvisionError(
            f"The config '{request.model}' contains the arguments of its model: leave out "
            f"{dict(request.arguments)}."
        )
    config = load_config(request.model, dict(request.options))
    import_extensions(config)
    build = PREDICTORS.get(config.kind) or PREDICTORS.get(config.scope)
    if build is None:
        raise HypvisionError(
            f"The config '{request.model}' describes a {config.kind}, for which there are no "
            "predictions. Use a config of one of these models: "
            f"{', '.join(name for name, found in PREDICTORS.items() if callable(found))}."
        )
    if isinstance(build, str):
        raise HypvisionError(
            f"The config '{request.model}' describes a {config.kind}, which finds nothing in "
            f"images. {build}"
        )
    if request.weights is None:
        raise HypvisionError(
            f"The config '{request.model}' has no weights: add --weights, its checkpoint."
        )
    model = trained_model(config, request.weights, request.options)
    return build(model.to(request.device), config, request)


def untrained_model(config: Run, whole: bool = False) -> Any:
    """Build the model of a config without the weights that its training starts from; ``config`` is
    changed. With ``whole`` the frozen weights, which checkpoints lack, are left out, too."""
    import_extensions(config)
    leave_out_pretrained(config.model, whole)
    PREPARATIONS.get(config.scope, lambda _: None)(config)
    with DefaultScope.overwrite_default_scope(config.scope), readable_errors():
        model = MODELS.build(config.model)
    check_channels(model)
    return model


def trained_model(
    config: Config | StrPath, weights: StrPath, given: Container[str] = ()
) -> nn.Module:
    """Return the model of a config with the weights of a checkpoint, in evaluation mode, with the
    attributes ``dataset_meta`` (None without classes) and ``familiar``. ``given``: the keys that
    the user has changed in the config, see :func:`~hypvision.engine.hooks.take_templates`."""
    run = load_config(config)
    checkpoint: Plain | None = None
    if "clip" in run.model:
        import_extensions(run)
        checkpoint = load(weights)
        take_templates(run.model, checkpoint, given)
    model = untrained_model(run)
    checkpoint = checkpoint or load(weights)
    load_trained(model, checkpoint, weights)
    if getattr(model, "takes_templates", False):
        model.words = () if "model.classes" in given else language_of(checkpoint).words
    about = (checkpoint.get("meta") or {}).get("dataset_meta") or {}
    model.dataset_meta = about if about.get("classes") else None
    model.familiar = familiar_of(checkpoint, weights)
    return model.eval()
