"""Export of a model from your own training to other runtimes, by its config and checkpoint; see
:mod:`hypvision.zoo.export`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hypvision.data.image_folder import unrecorded
from hypvision.engine.config import import_extensions, load_config
from hypvision.engine.predicting import trained_model
from hypvision.io import HypvisionError, Plain, StrPath
from hypvision.zoo.export import ExportReport, export_network, part_of

from .publishing import image_input, input_size

_logger = logging.getLogger(__name__)


def export_trained(
    config: StrPath,
    weights: StrPath,
    format: str,
    path: StrPath,
    dynamic_size: bool = True,
    part: str = "whole",
    size: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    half: bool = False,
) -> ExportReport:
    """Export the model of a training: a classifier, segmenter, detector or metric learner.

    Args:
        config: path or name of the training's config.
        weights: checkpoint of the training.
        format, path, dynamic_size, part, tell, half: as for
            :func:`hypvision.zoo.export.export_model`. The whole of a metric learner gives
            embeddings: points of its manifold, as the backbone and neck compute them.
        size: side of the images; default: the size of the config's test data.
    """
    loaded = load_config(config)
    import_extensions(loaded)
    kind = loaded.kind
    scope = loaded.scope
    model = trained_model(loaded, weights)
    task = dict(mmseg="segmentation", mmdet="detection").get(scope, "classification")
    task = "retrieval" if kind == "MetricLearner" else task
    if kind != "ImageClassifier" and (
        task == "classification" or getattr(model, "open_vocabulary", False)
    ):
        raise HypvisionError(
            f"The config describes a {kind}, which cannot be exported by a config. Those that can: "
            "classifiers (ImageClassifier), metric learners, and the segmenters and detectors of "
            "mmseg and mmdet that have fixed classes."
        )
    shape = input_size(loaded, size)
    known = scope in ("mmseg", "mmdet") or loaded.get("test_dataloader") is not None
    about: Plain = image_input(loaded, size) if known else {}
    lost = unrecorded(loaded.dataset("test").get("transform"))
    if lost:
        about = {}
        _logger.warning(
            "The transform of the test data has %s, which the exported file cannot record, so the "
            "file describes no input images. Prepare images as the config does.", lost,
        )  # fmt: skip
    about |= getattr(model, "dataset_meta", None) or {}
    network, output = part_of(
        model.backbone if kind == "ImageClassifier" else model, task, part, shape[1:]
    )
    return export_network(network, shape, format, path, dynamic_size, output, tell, about, half)
