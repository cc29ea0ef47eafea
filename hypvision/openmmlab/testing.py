"""Options of ``hypvision test`` for mmseg and mmdet: views for ``--tta``, painted images, files of
predictions, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypvision.engine.config import Run
from hypvision.engine.extensions import PREDICTION_ARGUMENTS, REPORTS, TEST_OPTIONS, TestOptions
from hypvision.io import Plain, Values, ensure

# Steps that follow the flip of a view: padding must be on the right and below, and annotations are
# those of the unflipped image.
AFTER_FLIP = ("Pad", "LoadAnnotations")


def kinds(pipeline: Sequence[Values]) -> list[str]:
    """Return the types of a pipeline's steps, without the names of packages."""
    return [str(step.get("type")).rpartition(".")[2] for step in pipeline]


def mirror_pipeline(pipeline: Sequence[Plain]) -> list[Plain]:
    """Return a test pipeline that yields each image twice, as it is and mirrored left to right, for
    a pipeline of mmseg or mmdet that loads the image first and packs the inputs last."""
    steps = [dict(step) for step in pipeline]
    names = kinds(steps)
    ensure(
        len(steps) >= 2 and names[0].startswith("Load") and names[-1].startswith("Pack"),
        "--tta: the views cannot be derived from the test pipeline of the config, which should "
        "begin with LoadImageFromFile and end with PackSegInputs or PackDetInputs; it is "
        f"{', '.join(names) or 'empty'}. Add a tta_pipeline to the config, or leave out --tta.",
    )
    pack = steps[-1]
    if "meta_keys" in pack:  # the tta_model must know which view is mirrored
        pack["meta_keys"] = tuple(
            dict.fromkeys((*pack["meta_keys"], "ori_shape", "flip", "flip_direction"))
        )
    place = next((i for i in range(1, len(steps)) if names[i] in AFTER_FLIP), len(steps) - 1)
    views = [[step] for step in steps[1:]]
    views.insert(
        place - 1, [dict(type="RandomFlip", prob=p, direction="horizontal") for p in (0.0, 1.0)]
    )
    return [steps[0], dict(type="TestTimeAug", transforms=views)]


def _augment(config: Run) -> None:
    """Make the config test each image together with its mirror image."""
    if "tta_model" not in config:
        if config.scope == "mmseg":
            config.tta_model = dict(type="SegTTAModel")
        else:
            # This import brings mmcv's operators and registers MirrorDetector.
            from .tta import NMS

            rules = config.model.get("test_cfg") or {}
            # Two-stage detectors have the settings of their second stage in "rcnn".
            rules = rules.get("rcnn") or rules
            config.tta_model = dict(
                type="MirrorDetector", tta_cfg={key: rules[key] for key in NMS if rules.get(key)}
            )
    if "tta_pipeline" not in config:
        config.tta_pipeline = mirror_pipeline(config.dataset("test").get("pipeline") or [])


def _show(config: Run, folder: Path) -> None:
    import hypvision.openmmlab.painting  # noqa: F401 - registers it

    config.add_hook(type="ResultPainterHook", out_dir=str(folder))


def _segmentation_report(metric: Values) -> Plain:
    import hypvision.openmmlab.segmentation_report  # noqa: F401 - registers it

    return dict(type="SegmentationReport", ignore_index=metric.get("ignore_index", 255))


def _detection_report(metric: Values) -> Plain:
    import hypvision.openmmlab.detection_report  # noqa: F401 - registers it; imports mmdet

    return dict(
        type="DetectionReport", **{key: metric.get(key) for key in ("ann_file", "backend_args")}
    )


TEST_OPTIONS.update(mmseg=TestOptions(_augment, _show), mmdet=TestOptions(_augment, _show))
PREDICTION_ARGUMENTS.update(IoUMetric="output_dir", CocoMetric="outfile_prefix")
PREDICTION_ARGUMENTS.update(OpenVocabIoUMetric="output_dir", OpenVocabCocoMetric="outfile_prefix")
REPORTS.update(IoUMetric=_segmentation_report, OpenVocabIoUMetric=_segmentation_report)
REPORTS.update(CocoMetric=_detection_report, OpenVocabCocoMetric=_detection_report)
