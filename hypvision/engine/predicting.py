"""The config of a training and its checkpoint, as a predictor of :mod:`hypvision.inference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmengine.registry import MODELS, DefaultScope

from hypvision.checkpoints.match import load_trained
from hypvision.engine.checkpoint import engine_names, load
from hypvision.engine.checks import readable_errors
from hypvision.engine.config import leave_out_pretrained, load_config
from hypvision.engine.extensions import PREDICTORS, import_extensions
from hypvision.errors import HypvisionError

if TYPE_CHECKING:
    from hypvision.inference.predictors import Predictor, Request

__all__ = ["predictor_of"]


def predictor_of(request: Request) -> Predictor:
    """The predictor of a request whose model is a config.

    Raises:
        HypvisionError: no checkpoint is given, it does not fit, or a model that nothing here can run.
    """
    config = load_config(request.model)
    import_extensions(config)
    kind, scope = config.model.get("type"), config.get("default_scope")
    build = PREDICTORS.get(kind) or PREDICTORS.get(scope)
    if build is None:
        raise HypvisionError(
            f"The config '{request.model}' describes a {kind}, of which there are no predictions. There are of "
            f"{', '.join(PREDICTORS)}."
        )
    if request.weights is None:
        raise HypvisionError(f"The config '{request.model}' has no weights: add --weights, its checkpoint.")
    leave_out_pretrained(config.model)
    with DefaultScope.overwrite_default_scope(scope or "mmengine"), readable_errors():
        model = MODELS.build(config.model)
    checkpoint = engine_names(model, load(request.weights))
    load_trained(model, checkpoint, request.weights)
    about = (checkpoint.get("meta") or {}).get("dataset_meta") or {}
    model.dataset_meta = about if about.get("classes") else None
    return build(model.to(request.device).eval(), config, request)
