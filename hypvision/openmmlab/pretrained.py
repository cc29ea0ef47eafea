"""Segmenters and detectors of the zoo, built for :func:`hypvision.load`."""

from __future__ import annotations

import importlib
from pathlib import Path

import timm
from torch import nn

from hypvision.checkpoints.records import Record
from hypvision.engine.config import Run
from hypvision.engine.published import build_published
from hypvision.io import Values, require

_SCOPES = {"segmentation": "mmseg", "detection": "mmdet"}
# Test pipelines that keep the image at its own size, as the zoo's models were tested.
_PIPELINES = {
    # The scope is needed for images given as arrays: mmseg and mmdet then replace the first step by
    # their own loader.
    "mmseg": [dict(type="LoadImageFromFile", _scope_="mmseg"), dict(type="mmseg.PackSegInputs")],
    "mmdet": [
        dict(type="LoadImageFromFile", _scope_="mmdet"),
        # This step does not resize, but heads need the scale_factor that it sets.
        dict(type="mmdet.Resize", scale_factor=1.0, keep_ratio=True),
        dict(
            type="mmdet.PackDetInputs",
            meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
        ),
    ],
}


def build_model(record: Record, path: Path, overrides: Values) -> nn.Module:
    """Return the segmenter or detector of a record with its weights, see
    :func:`hypvision.engine.published.build_published`.

    It has an attribute ``cfg``, so that :func:`mmseg.apis.inference_model` and
    :func:`mmdet.apis.inference_detector` accept it.
    """
    scope = _SCOPES[record.task]
    # This import registers the operators before mmdet imports them.
    importlib.import_module("hypvision.openmmlab")
    require(f"{scope}.models", "mm")
    if not timm.is_model(record.model):  # the model is a CLIP, with open-vocabulary heads
        importlib.import_module(f"hypvision.openmmlab.open_vocabulary.{record.task}")
    model, config = build_published(record, path, overrides, scope)
    if getattr(model, "open_vocabulary", False):
        model.train_classes = tuple(model.dataset_meta["classes"])
        model.set_test_classes(record.classes)  # they may contain classes beyond the training's
        model.dataset_meta = {"classes": record.classes}
    pipeline = _PIPELINES[scope]
    model.cfg = Run(
        dict(
            model=config,
            default_scope=scope,
            test_pipeline=pipeline,
            test_dataloader=dict(dataset=dict(pipeline=pipeline)),
        )
    )
    return model
