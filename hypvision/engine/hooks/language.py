"""Store the templates and words of a CLIP in the checkpoints of its training, and use those of a
checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Container

from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import Runner

from hypvision.checkpoints.language import KEY, Language, language_of, written
from hypvision.data.classes import checked_templates
from hypvision.io import Plain, Values

from .repeat import network_of

_logger = logging.getLogger(__name__)


@HOOKS.register_module()
class LanguageHook(Hook):
    """Put the :class:`~hypvision.checkpoints.language.Language` of a model into its checkpoints, if
    the model has one."""

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        """Add the model's language to ``checkpoint`` in place."""
        found: Language | None = getattr(network_of(runner), "language", None)
        if found is not None:
            checkpoint["meta"][KEY] = written(found)


def take_templates(model: Plain, checkpoint: Values, given: Container[str] = ()) -> None:
    """Change the ``model`` of a config to the templates that its checkpoint was trained with, since
    these belong to the weights, unless the user has given others. ``given``: the keys of
    ``--cfg-options``."""
    templates = language_of(checkpoint).templates
    if not templates or "model.templates" in given or not _takes_templates(str(model.get("type"))):
        return
    own = model.get("templates")
    if own is not None and checked_templates(own) != templates:
        _logger.warning(
            "The checkpoint was trained with the templates %s, which replace those of "
            "the config. --cfg-options model.templates=... uses others.", list(templates),
        )  # fmt: skip
    model["templates"] = list(templates)


def _takes_templates(kind: str) -> bool:
    """Return whether a model class of this name, in any library, has the argument ``templates``."""
    registries = (MODELS, *MODELS.children.values())
    found = [registry.module_dict.get(kind) for registry in registries]
    return any(getattr(each, "takes_templates", False) for each in found)
