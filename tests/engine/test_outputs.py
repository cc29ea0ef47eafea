"""What ``--tta``, ``--out``, ``--save`` and ``--show-dir`` give for the three tasks, against a
direct computation."""

import base64
import csv
import json
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import ROOT, make_images, tiny, write_config
from helpers.shapes.export import export
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask

from hypvision.checkpoints.read import read
from hypvision.cli import main
from hypvision.engine.config import Run, load_config
from hypvision.engine.reports import write_predictions
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.inference.results import Boxes, Labels
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.testing import mirror_pipeline
from hypvision.openmmlab.tta import MirrorDetector


def run(capsys, *arguments) -> dict:
    """``hypvision test ...``; the metrics that it printed."""
    capsys.readouterr()
    assert main(["test", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def trained(task, layout, side, folder):
    """Config, checkpoint and data of a very short training; the model is as it was at its end."""
    data = export(folder / "data", layout, 4, 3, side, level="kind")
    runner = train(tiny(task, data, folder / f"{task}.py"), folder / "run")
    checkpoint = folder / "run" / ("epoch_1.pth" if task == "detection" else "iter_2.pth")
    classes = read(checkpoint)["meta"]["dataset_meta"]["classes"]
    return SimpleNamespace(
        config=folder / f"{task}.py",
        checkpoint=checkpoint,
        data=data,
        model=runner.model.eval(),
        classes=classes,
    )


def occurs(picture, path):
    """Whether a picture is the last in the row of a sheet, pixel by pixel."""
    sheet = np.asarray(Image.open(path))
    wanted = np.asarray(picture)
    left = sheet.shape[1] // 2
    return any(
        np.array_equal(sheet[10 : 10 + wanted.shape[0], x : x + wanted.shape[1]], wanted)
        for x in range(left, sheet.shape[1] - wanted.shape[1] + 1)
    )


def table(path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def confusion(folder) -> list[list[int]]:
    """The numbers of the matrix in a report."""
    return [list(map(int, list(row.values())[1:])) for row in table(folder / "confusion.csv")]


def check_page(folder, tables):
    """The report has these tables, its pictures are in the page, and nothing in it leads out of
    it."""
    assert {path.stem for path in folder.glob("*.csv")} - {"confused"} == tables - {"confused"}
    page = (folder / "report.html").read_text()
    pictures = re.findall(r'src="data:image/(?:png|jpeg);base64,([^"]+)"', page)
    found = [path.read_bytes() for path in folder.iterdir() if path.suffix in (".png", ".jpg")]
    assert sorted(map(base64.b64decode, pictures)) == sorted(found) and len(found) > 0
    assert page.count("src=") == len(pictures)
    assert not re.search(r"href=|url\(|https?:|<script|@import", page)


def images(paths) -> list[torch.Tensor]:
    """BGR images ``(3, H, W)``, as mmcv reads them, by OpenCV itself (JPEG decoders differ by a
    grey level)."""
    import cv2

    return [torch.from_numpy(cv2.imread(str(path)).transpose(2, 0, 1).copy()) for path in paths]


# Segmentation
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return trained("segmentation", "ade", 64, tmp_path_factory.mktemp("segmenter"))


def probabilities(model, image: torch.Tensor) -> torch.Tensor:
    """Softmax ``(classes, H, W)`` of one image, without the test pipeline of mmseg."""
    mean = torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)
    with torch.no_grad():
        logits = model.decode_head(model.neck(model.backbone(((image.flip(0) - mean) / std)[None])))
    return torch.nn.functional.interpolate(logits, image.shape[1:], mode="bilinear")[0].softmax(0)


@pytest.mark.quick("True")
@pytest.mark.parametrize("tta", [False, True])
def test_segmentation(segmenter, tmp_path, capsys, tta):
    names = sorted((segmenter.data / "images/validation").glob("*.jpg"))
    arguments = (
        f"--work-dir {tmp_path} --out {tmp_path / 'report'} --show-dir {tmp_path / 'shown'}"
    ).split()
    metrics = run(
        capsys, segmenter.config, segmenter.checkpoint, *arguments, *(["--tta"] if tta else [])
    )
    expected = []
    for image in images(names):
        scores = probabilities(segmenter.model, image)
        if tta:
            scores = scores + probabilities(segmenter.model, image.flip(-1)).flip(-1)
        expected.append(scores.argmax(0).numpy())
    for path, labels in zip(names, expected):
        written = np.array(Image.open(tmp_path / "report/label_maps" / f"{path.stem}.png"))
        assert np.array_equal(written, labels + 1)  # as in the data set, where 0 is never used
        picture = Labels(labels, segmenter.classes).draw(Image.open(path))
        assert occurs(picture, tmp_path / f"shown/{path.stem}.png")
    assert len(list((tmp_path / "shown").iterdir())) == len(names)
    truth = [
        np.array(Image.open(segmenter.data / "annotations/validation" / f"{path.stem}.png")) - 1
        for path in names
    ]
    right = np.mean([a == b for a, b in zip(expected, truth)])
    assert metrics["aAcc"] == pytest.approx(100 * right, abs=0.01)
    pairs = Counter(pair for a, b in zip(truth, expected) for pair in zip(a.flat, b.flat))
    assert confusion(tmp_path / "report") == [
        [pairs[true, guess] for guess in range(5)] for true in range(5)
    ]
    check_page(tmp_path / "report", {"metrics", "confusion", "confused", "classes", "mistakes"})


# Detection
# --------------------------------------------------------------------------------------------------


SIDE = 96  # what the test pipeline resizes to: nothing changes


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return trained("detection", "coco", SIDE, tmp_path_factory.mktemp("detector"))


def predict(model, image: torch.Tensor) -> InstanceData:
    """The instances that a detector finds in one image, through its own ``predict``."""
    from mmdet.structures import DetDataSample

    shape = tuple(image.shape[1:])
    sample = DetDataSample(metainfo=dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0)))
    with torch.no_grad():
        return model.test_step(dict(inputs=[image], data_samples=[sample]))[0].pred_instances


def thinned(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, limit: float) -> list[int]:
    """Greedy non-maximum suppression in each class, one pair at a time; numbers of the boxes kept,
    best first."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        overlaps = []
        for j in kept:
            left, top = np.maximum(boxes[i, :2], boxes[j, :2])
            right, bottom = np.minimum(boxes[i, 2:], boxes[j, 2:])
            common = max(0.0, right - left) * max(0.0, bottom - top)
            areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (boxes[i], boxes[j])]
            overlaps.append(labels[i] == labels[j] and common / (sum(areas) - common) > limit)
        if not any(overlaps):
            kept.append(int(i))
    return kept


@pytest.mark.quick("True")
@pytest.mark.parametrize("tta", [False, True])
def test_detection(detector, tmp_path, capsys, tta):
    options = [
        "--cfg-options",
        "model.test_cfg.rcnn.score_thr=0.01",
        "model.test_cfg.rcnn.max_per_img=20",
    ]
    places = (
        f"--save {tmp_path / 'found.json'} --out {tmp_path / 'report'} --show-dir "
        f"{tmp_path / 'shown'}"
    ).split()
    arguments = ["--work-dir", tmp_path, *places, *options]
    metrics = run(
        capsys, detector.config, detector.checkpoint, *arguments, *(["--tta"] if tta else [])
    )
    assert {"coco/bbox_mAP", "coco/segm_mAP"} <= metrics.keys()
    written = {
        kind: json.loads((tmp_path / f"found.{kind}.json").read_text()) for kind in ("bbox", "segm")
    }
    names = sorted((detector.data / "val2017").glob("*.jpg"))
    assert sorted(file.stem for file in (tmp_path / "shown").iterdir()) == [
        path.stem for path in names
    ]
    detector.model.roi_head.test_cfg.update(score_thr=0.01, max_per_img=20)
    for number, image in enumerate(images(names)):
        views = [predict(detector.model, image)]
        if tta:
            mirrored = predict(detector.model, image.flip(-1))
            left, top, right, bottom = mirrored.bboxes.unbind(1)
            mirrored.bboxes = torch.stack([SIDE - right, top, SIDE - left, bottom], dim=1)
            mirrored.masks = mirrored.masks.flip(-1)
            views.append(mirrored)
        boxes, scores, labels, masks = (
            torch.cat([torch.as_tensor(view[key]) for view in views]).numpy()
            for key in ("bboxes", "scores", "labels", "masks")
        )
        kept = thinned(boxes, scores, labels, 0.5)[:20] if tta else list(range(len(boxes)))
        found = [item for item in written["bbox"] if item["image_id"] == number]
        assert len(found) == len(kept) > 3
        left, top, right, bottom = boxes[kept].T
        expected = np.stack([left, top, right - left, bottom - top], axis=1)
        np.testing.assert_allclose([item["bbox"] for item in found], expected, atol=1e-3)
        np.testing.assert_allclose([item["score"] for item in found], scores[kept], atol=1e-5)
        assert [item["category_id"] - 1 for item in found] == labels[kept].tolist()
        sure = [i for i in kept if scores[i] >= 0.3]
        shown = Boxes(
            boxes[sure], scores[sure], labels[sure], detector.classes, masks[sure].astype(bool)
        )
        assert occurs(
            shown.draw(Image.open(names[number])), tmp_path / f"shown/{names[number].stem}.png"
        )
        segments = [item["segmentation"] for item in written["segm"] if item["image_id"] == number]
        assert np.array_equal(
            np.stack([coco_mask.decode(s) for s in segments]).astype(bool), masks[kept]
        )
    rows = table(tmp_path / "report/classes.csv")
    known = [float(row["AP50"]) for row in rows if row["AP50"] != "nan"]
    assert np.mean(known) / 100 == pytest.approx(metrics["coco/bbox_mAP_50"], abs=1e-3)
    truth = json.loads((detector.data / "annotations/instances_val2017.json").read_text())[
        "annotations"
    ]
    assert sum(int(row["objects"]) for row in rows) == len(truth)
    check_page(
        tmp_path / "report", {"metrics", "precision_recall", "classes", "confusion", "mistakes"}
    )


def test_mirror_detector_without_masks_or_findings():
    from torch import nn

    class Module(nn.Module):
        def test_step(self, data):
            return data

    model = MirrorDetector(Module(), tta_cfg=dict(max_per_img=2))
    view = lambda flip, boxes, scores: SimpleNamespace(  # noqa: E731
        metainfo=dict(flip=flip, flip_direction="horizontal", ori_shape=(10, 20)),
        pred_instances=InstanceData(
            bboxes=torch.tensor(boxes).reshape(-1, 4), scores=torch.tensor(scores),
            labels=torch.zeros(len(scores), dtype=torch.long),
        ),
    )  # fmt: skip
    plain = view(False, [[0.0, 0, 4, 4], [10.0, 0, 14, 4]], [0.5, 0.4])
    mirrored = view(True, [[16.0, 0, 20, 4], [0.0, 5, 3, 9]], [0.9, 0.6])
    (merged,) = model.merge_preds([[plain, mirrored]])
    assert merged.pred_instances.bboxes.tolist() == [[0, 0, 4, 4], [17, 5, 20, 9]]
    assert merged.pred_instances.scores.tolist() == pytest.approx([0.9, 0.6])
    nothing = [view(False, [], []), view(True, [], [])]
    assert len(model.merge_preds([nothing])[0].pred_instances) == 0


def test_views_follow_from_the_test_pipeline():
    load, pack = dict(type="LoadImageFromFile"), dict(type="PackDetInputs", meta_keys=("img_id",))
    middle = [
        dict(type="Resize", scale=(8, 8)),
        dict(type="Pad", size=(16, 16)),
        dict(type="LoadAnnotations"),
    ]
    first, views = mirror_pipeline([load, *middle, pack])
    assert first == load and views["type"] == "TestTimeAug"
    steps = views["transforms"]
    assert [step[0]["type"] for step in steps] == [
        "Resize",
        "RandomFlip",
        "Pad",
        "LoadAnnotations",
        "PackDetInputs",
    ]
    assert [flip["prob"] for flip in steps[1]] == [0.0, 1.0]  # the first view is the image as it is
    assert {"img_id", "flip", "flip_direction", "ori_shape"} <= set(steps[-1][0]["meta_keys"])
    assert pack["meta_keys"] == ("img_id",)
    for wrong in ([], [load], [load, dict(type="Resize")], [dict(type="Resize"), pack]):
        with pytest.raises(HypvisionError, match="tta_pipeline"):
            mirror_pipeline(wrong)


def test_tta_of_a_config_comes_first(segmenter, tmp_path):
    """CamVid's config has views of its own; a config of neither library needs them."""
    from hypvision.engine.reports import use_tta

    config = load_config(ROOT / "configs/hcformer/semantic-fpn_hcformer-nano_600i_camvid.py")
    use_tta(config)
    assert config.test_dataloader.dataset.pipeline == config.tta_pipeline
    assert config.model.type == "SegTTAModel"
    with pytest.raises(HypvisionError, match="tta_model"):
        use_tta(
            Run(dict(model=dict(type="Other"), test_dataloader=dict(dataset=dict(pipeline=[]))))
        )


# Classification
# --------------------------------------------------------------------------------------------------


def test_classification(tmp_path):
    config = write_config(tmp_path / "classifier.py", make_images(tmp_path / "data", per_class=3))
    runner = train(config, tmp_path / "run")
    model, data = runner.model.eval(), runner.val_dataloader.dataset
    inputs = torch.stack([data[i]["inputs"] for i in range(len(data))])
    out, shown, folder = tmp_path / "out.json", tmp_path / "shown", tmp_path / "report"
    for tta in (False, True):
        metrics = measure(
            config, tmp_path / "run/epoch_1.pth", tmp_path / "run", folder, shown, tta, save=out
        )
        with torch.no_grad():
            logits = model.backbone(inputs)
            if tta:
                logits = (logits + model.backbone(inputs.flip(-1))) / 2
        report = json.loads(out.read_text())
        best = [prediction["classes"][0] for prediction in report["predictions"]]
        assert best == logits.argmax(1).tolist()
        scores = torch.tensor([prediction["scores"][0] for prediction in report["predictions"]])
        torch.testing.assert_close(scores, logits.softmax(1).amax(1))
        right = [label == guess for label, guess in zip(data.labels, best)]
        assert metrics["top1"] == pytest.approx(100 * np.mean(right))
        assert len(list(shown.glob("right_*.png"))) == sum(right)
        pairs = Counter(zip(data.labels.tolist(), best))
        assert confusion(folder) == [
            [pairs[true, guess] for guess in range(3)] for true in range(3)
        ]
        check_page(
            folder,
            {"metrics", "confusion", "classes", "mistakes"}
            | ({"confused"} if not all(right) else set()),
        )
        for file in shown.iterdir():
            file.unlink()


def test_dots_stay_in_the_names_of_predictions(tmp_path):
    """Boxes that are saved as two names must not be written to one."""
    for name, prefix in (("boxes.test", "boxes.test"), ("boxes.json", "boxes")):
        config = Run(dict(test_evaluator=dict(type="CocoMetric")))
        write_predictions(config, tmp_path / name)
        assert config.test_evaluator.outfile_prefix == str(tmp_path / prefix)
