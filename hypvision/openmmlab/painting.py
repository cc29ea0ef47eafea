"""Images of ``hypvision test --show-dir`` for segmenters and detectors: predictions beside the
ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from PIL import ImageOps

from hypvision.engine.checking import picture_of
from hypvision.io.files import below
from hypvision.io.images import open_image, output_names
from hypvision.viz.sheet import save_image, titled_sheet

from .predicting import result_of


@HOOKS.register_module()
class ResultPainterHook(Hook):
    """Writes each test image with its boxes, masks or classes painted in: on the left those of the
    annotations, on the right the predicted ones; only the predicted ones if there are no
    annotations.

    Args:
        out_dir: folder for the images; made if missing.
    """

    def __init__(self, out_dir: str):
        self.out_dir = Path(out_dir)

    def before_test(self, runner: Runner) -> None:
        dataset: Any = runner.test_dataloader.dataset
        self.annotated = False
        paths = []
        # The infos hold all boxes and polygons, so no list of them is kept.
        for index in range(len(dataset)):
            info = dataset.get_data_info(index)
            self.annotated |= bool(info.get("seg_map_path") or info.get("instances"))
            paths.append(str(info["img_path"]))
        self.indices = dict(zip(paths, range(len(paths))))
        self.names = dict(zip(paths, output_names([Path(path) for path in paths])))
        self.out_dir.mkdir(parents=True, exist_ok=True)

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[Any] | None = None,
    ) -> None:
        dataset: Any = runner.test_dataloader.dataset
        classes = tuple(map(str, dataset.metainfo["classes"]))
        for sample in outputs or ():  # each process paints the samples that it tested
            path = str(sample.img_path)
            found = result_of(sample, classes).draw(open_image(path))
            if found is None:
                continue
            index = self.indices[path]
            info = dataset.get_data_info(index)
            # The map of panoptic data contains ids of segments, not labels.
            truth = (
                picture_of(dataset, index)
                if self.annotated and "segments_info" not in info
                else None
            )
            tiles = [(found, "found")] if truth is None else [(truth, "true"), (found, "found")]
            high = max(image.height for image, _ in tiles)
            # White below the smaller image makes both images begin at one line, though their
            # legends differ in height.
            tiles = [
                (ImageOps.pad(x, (x.width, high), color="white", centering=(0, 0)), title)
                for x, title in tiles
            ]
            save_image(titled_sheet(tiles), below(self.out_dir, f"{self.names[path]}.png"))
