"""Build whole models of the zoo: the header of a weight file holds the config of its model."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict
from mmengine.registry import MODELS, TASK_UTILS, WEIGHT_INITIALIZERS, DefaultScope

from hypvision.checkpoints.match import load_trained
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.records import Record
from hypvision.checkpoints.storage import read_header
from hypvision.io import HypvisionError, Plain, Values

from .checks import walk

# Names that mmcv, or hypvision's segmenters on CLIP, look up in their own code instead of a
# registry.
_BY_NAME = ("nms", "soft_nms", "RoIAlign", "similarity", "catseg")
_SCOPES = ("mmengine", "mmseg", "mmdet")


def build_published(
    record: Record, path: Path, overrides: Values, scope: str = "mmengine"
) -> tuple[Any, Plain]:
    """Return the whole model of a record, with its weights and ``dataset_meta``, and its config.

    Args:
        record: the model's record of the zoo.
        path: the record's file, already verified.
        overrides: arguments of the model, which must be empty, since the weights are those of the
            whole model.
        scope: mmengine's default scope in which the model is built; its package must be imported.

    Raises:
        HypvisionError: there are overrides, the file has no config, or its config would run code or
            load other files.
    """
    if overrides:
        raise HypvisionError(
            f"'{record.name}' is a whole model and takes no arguments, got {', '.join(overrides)}. "
            f"To change it, train the config {record.config} with load_from='zoo:{record.name}'."
        )
    header = read_header(path)
    config = header.get("model")
    if not isinstance(config, dict):
        raise HypvisionError(f"'{path}' does not hold the config of its model. Publish it again.")
    _check_types(config, path)
    with DefaultScope.overwrite_default_scope(scope), warnings.catch_warnings():
        # mmdet's own losses still use builders that warn of being deprecated.
        warnings.filterwarnings("ignore", module=scope)
        # mmdet reads train_cfg.rpn as an attribute, which needs a ConfigDict.
        model = MODELS.build(ConfigDict(config))
    load_trained(model, read_weights(path), path)
    model.dataset_meta = header.get("dataset_meta") or {"classes": record.classes}
    return model, config


def _registered() -> set[str]:
    """Return the names of all types that a model can be built from; mmseg's and mmdet's if they are
    imported."""
    nodes = [MODELS, TASK_UTILS, WEIGHT_INITIALIZERS]
    found = set(_BY_NAME)
    for node in nodes:
        found |= set(node.module_dict)
        nodes.extend(node.children.values())
    return found


def _check_types(config: Any, path: Path) -> None:
    """Raise an error for a model with parts whose types are not registered.

    mmengine takes a ``type`` that is in no registry for the path of a Python object, imports it and
    calls it, and a ``_scope_`` for a module, which it imports: a weight file could run any code.
    """
    known = _registered()
    for node in [config, *(part for _, part in walk(config))]:
        if not isinstance(node, dict):
            continue
        if node.get("_scope_", "mmengine") not in _SCOPES:
            raise HypvisionError(
                f"'{path}' was refused: its model names a scope ({node['_scope_']!r}), by which "
                "mmengine imports a module of that name. Get the file from a source that you "
                "trust, or publish it again."
            )
        kind = node.get("type")
        if kind is not None and (
            not isinstance(kind, str) or re.sub(r"^mm(seg|det|engine)\.", "", kind) not in known
        ):
            raise HypvisionError(
                f"'{path}' was refused: its model has a part of the type {kind!r}, which is "
                "neither mmseg's, mmdet's nor hypvision's. Get the file from a source that you "
                "trust, or install the package that the part is from and import it first."
            )
