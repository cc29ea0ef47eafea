"""The images of ``hypvision test --show-dir``."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmdet")
from mmdet.structures import DetDataSample
from mmengine.structures import PixelData

from hypvision.inference.results import Segments
from hypvision.openmmlab.painting import ResultPainterHook


def test_images_without_truth_stand_alone_and_have_names_of_their_own(tmp_path):
    """Panoptic results: class + 1000 * number of the object."""
    coded = torch.zeros(1, 20, 30, dtype=torch.long)
    coded[:, :10] = 1001
    infos, samples = [], []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (30, 20), "gray").save(tmp_path / folder / "x.png")
        infos.append(
            dict(
                img_path=str(tmp_path / folder / "x.png"),
                segments_info=[],
                seg_map_path="no such file",
            )
        )
        samples.append(DetDataSample(metainfo=dict(img_path=infos[-1]["img_path"])))
        samples[-1].pred_panoptic_seg = PixelData(sem_seg=coded)

    class Data(list):
        metainfo = dict(classes=("grass", "cow"))
        get_data_info = list.__getitem__

    runner = SimpleNamespace(test_dataloader=SimpleNamespace(dataset=Data(infos)))
    hook = ResultPainterHook(str(tmp_path / "deep/shown"))
    hook.before_test(runner)
    hook.after_test_iter(runner, 0, outputs=samples)
    shown = tmp_path / "deep/shown"
    assert sorted(path.name for path in shown.iterdir()) == ["a_x.png", "b_x.png"]
    numbers = np.where(coded[0] == 1001, 2, 1)
    picture = np.asarray(
        Segments(numbers, np.array([0, 1]), ("grass", "cow")).draw(
            Image.new("RGB", (30, 20), "gray")
        )
    )
    sheet = np.asarray(Image.open(shown / "a_x.png"))
    assert np.array_equal(sheet[10 : 10 + picture.shape[0], 10 : 10 + picture.shape[1]], picture)
    assert sheet.shape[1] == picture.shape[1] + 20  # alone
