"""CocoMetric in hypvision's form against pycocotools called for one category at a time."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("mmdet")
from mmdet.registry import DATASETS, METRICS
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import hypvision.openmmlab.datasets.detection  # noqa: F401 - the metric in mmdet's registry
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.coco_metric import precision_curves
from hypvision.openmmlab.open_vocabulary.detection import OpenVocabCocoMetric

NAMES = ("cat", "dog", "cow", "emu")


def boxes(random, count):
    corner, size = random.uniform(0, 60, (count, 2)), random.uniform(20, 40, (count, 2))
    return np.concatenate([corner, size], 1)


def scenes(ids, seed=0):
    """COCO's content with as good as random boxes, the categories in the order of ``ids``, and
    detections of them."""
    random = np.random.default_rng(seed)
    images = [dict(id=10 + k, file_name=f"{k}.jpg", width=120, height=120) for k in range(6)]
    annotations, found = [], []
    for image in images:
        for k, name in enumerate(NAMES[:3]):  # no emu anywhere
            for box in boxes(random, 2):
                annotations.append(dict(id=len(annotations) + 1, image_id=image["id"],
                category_id=ids[name],
                                        bbox=box.tolist(), area=float(box[2] * box[3]),
                                        iscrowd=0))  # fmt: skip
                near = box + random.normal(
                    0, 3.0 * (k + 1), 4
                )  # dogs are found less well than cats
                found.append((image["id"], name, near, random.uniform()))
            found.append(
                (image["id"], NAMES[3] if k else name, boxes(random, 1)[0], random.uniform())
            )
    content = dict(
        images=images,
        annotations=annotations,
        categories=[dict(id=v, name=k) for k, v in ids.items()],
    )
    return content, found


def by_hand(path, ids, found, most=1000):
    """AP of each class by pycocotools, which is told of no other class: what it sorts cannot
    matter."""
    truth = COCO(str(path))
    result = {}
    for name, number in ids.items():
        own = [
            dict(image_id=i, category_id=number, bbox=box.tolist(), score=s)
            for i, n, box, s in found
            if n == name
        ]
        run = COCOeval(truth, truth.loadRes(own), "bbox")
        run.params.catIds, run.params.maxDets = [number], [1, 10, most]
        run.evaluate()
        run.accumulate()
        precision = run.eval["precision"][:, :, 0, 0, -1]
        result[name] = (
            float(precision[precision > -1].mean()) if (precision > -1).any() else math.nan
        )
    return result


def samples(found, classes, images):
    result = []
    for image in images:
        own = [
            (box, classes.index(name), score) for i, name, box, score in found if i == image["id"]
        ]
        corners = torch.tensor(
            np.array([[*b[:2], *(b[:2] + b[2:])] for b, _, _ in own]), dtype=torch.float64
        )
        instances = dict(bboxes=corners, labels=torch.tensor([label for _, label, _ in own]),
                         scores=torch.tensor([score for _, _, score in own],
                         dtype=torch.float64))  # fmt: skip
        result.append(dict(pred_instances=instances, img_id=image["id"], ori_shape=(120, 120),
                           img_path=image["file_name"]))  # fmt: skip
    return result


IDS = {
    "sorted": dict(cat=1, dog=2, cow=3, emu=4),
    "shuffled": dict(cat=7, dog=90, cow=2, emu=5),
    "falling": dict(emu=9, cow=8, dog=3, cat=1),
}


@pytest.mark.parametrize(
    "classes", [NAMES, NAMES[::-1], ("dog", "emu", "cat", "cow")], ids=["file", "back", "mixed"]
)
@pytest.mark.parametrize("ids", IDS)
def test_each_average_precision_has_its_own_name(tmp_path, ids, classes):
    ids = IDS[ids]
    content, found = scenes(ids)
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content))
    expected = by_hand(path, ids, found)
    assert len({round(value, 3) for value in expected.values()}) == 4  # a wrong name would show
    metric = METRICS.build(dict(type="CocoMetric", ann_file=str(path), classwise=True))
    metric.dataset_meta = dict(classes=classes)
    metric.process({}, samples(found, classes, content["images"]))
    got = metric.evaluate(6)
    for name in NAMES:
        assert got[f"coco/{name}_precision"] == pytest.approx(
            expected[name], abs=6e-4, nan_ok=True
        ), name
    known = [value for value in expected.values() if not math.isnan(value)]
    assert got["coco/bbox_mAP"] == pytest.approx(np.mean(known), abs=1e-3)

    fifty = OpenVocabCocoMetric(ann_file=str(path), groups={name: [name] for name in NAMES})
    fifty.dataset_meta = dict(classes=classes)
    fifty.process({}, samples(found, classes, content["images"]))
    got = fifty.evaluate(6)
    assert math.isnan(got["ov/AP50_emu"]) and got["ov/AP50_cat"] > got["ov/AP50_cow"] > 0
    assert got["ov/AP"] == pytest.approx(100 * np.mean(known), abs=0.01)


@pytest.mark.parametrize("ids", IDS)
def test_labels_of_the_data_go_by_name(tmp_path, ids):
    content, _ = scenes(IDS[ids])
    (tmp_path / "truth.json").write_text(json.dumps(content))
    classes = ("emu", "cow", "cat", "dog")
    data = DATASETS.build(dict(type="CocoDataset", ann_file=str(tmp_path / "truth.json"),
    pipeline=[],
                               metainfo=dict(classes=classes), data_prefix=dict(img=""),
                               test_mode=True))  # fmt: skip
    wanted = {item["id"]: [] for item in content["images"]}
    for item in content["annotations"]:
        name = next(name for name, number in IDS[ids].items() if number == item["category_id"])
        wanted[item["image_id"]].append(classes.index(name))
    assert [[x["bbox_label"] for x in data[i]["instances"]] for i in range(6)] == list(
        wanted.values()
    )
    content["categories"].append(dict(id=99, name="cat"))
    (tmp_path / "twice.json").write_text(json.dumps(content))
    with pytest.raises(HypvisionError, match=r"twice\.json' .*has a name more than once"):
        DATASETS.build(
            dict(
                type="CocoDataset",
                ann_file=str(tmp_path / "twice.json"),
                metainfo=dict(classes=classes),
            )
        )


@pytest.mark.parametrize("counts", [(100, 300, 1000), (1, 2, 3), (5,), (2, 9), (1, 10, 100, 300)])
def test_numbers_of_proposals_are_those_of_the_recalls(tmp_path, counts):
    """The average precision is that of 100 detections whatever they are."""
    content, found = scenes(IDS["sorted"])
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content))

    def measure(metric, **options):
        metric = METRICS.build(
            dict(type="CocoMetric", ann_file=str(path), metric=metric, **options)
        )
        metric.dataset_meta = dict(classes=NAMES)
        metric.process({}, samples(found, NAMES, content["images"]))
        return metric.evaluate(6)

    usual = measure("bbox")
    assert (
        measure("bbox", proposal_nums=counts) == pytest.approx(usual, nan_ok=True)
        and usual["coco/bbox_mAP"] > 0.05
    )
    got = measure("proposal", proposal_nums=counts)
    truth = COCO(str(path))
    own = [
        dict(image_id=i, category_id=1, bbox=box.tolist(), score=score)
        for i, _, box, score in found
    ]
    run = COCOeval(truth, truth.loadRes(own), "bbox")
    run.params.useCats, run.params.maxDets = 0, sorted(counts)
    run.evaluate()
    run.accumulate()
    recalls = {
        count: run.eval["recall"][:, 0, 0, k].mean() for k, count in enumerate(sorted(counts))
    }
    ends = {counts[0], counts[min(1, len(counts) - 1)], counts[-1]}
    assert {name for name in got if name.startswith("coco/AR@")} == {
        f"coco/AR@{count}" for count in ends
    }
    for count in ends:
        assert got[f"coco/AR@{count}"] == pytest.approx(recalls[count], abs=6e-4)
    assert math.isnan(got[f"coco/AR_l@{counts[-1]}"])  # no large object


def crowded(seed):
    """Objects of all sizes, some of them crowds, with masks; and detections, 130 of the first
    image, with ties."""
    random = np.random.default_rng(seed)
    images = [dict(id=3 + k, file_name=f"{k}.jpg", width=320, height=240) for k in range(5)]
    annotations, found = [], []
    for image in images:
        for _ in range(random.integers(4, 12)):
            width, height = np.exp(random.uniform(np.log(8), np.log(160), 2))
            box = np.array(
                [random.uniform(0, 320 - width), random.uniform(0, 240 - height), width, height]
            )
            category, crowd = int(random.integers(1, 4)), int(random.uniform() < 0.15)
            shape = ellipse(box)
            number = len(annotations) + 1
            annotations.append(
                dict(
                    id=number,
                    image_id=image["id"],
                    category_id=category,
                    bbox=box.tolist(),
                    iscrowd=crowd,
                )
                | dict(area=float(shape.sum()), segmentation=coded(shape))
            )
            for _ in range(20 if image["id"] == 3 else 3):
                near = box + random.normal(0, 0.1, 4) * box[[2, 3, 2, 3]]
                label = category if random.uniform() < 0.8 else int(random.integers(1, 5))
                score = float(np.round(random.uniform(), 2))
                found.append((image["id"], label, np.r_[near[:2], np.abs(near[2:])], score))
    categories = [dict(id=k + 1, name=name) for k, name in enumerate(NAMES)]
    return dict(images=images, annotations=annotations, categories=categories), found


def ellipse(box):
    y, x = np.mgrid[:240, :320] + 0.5
    left, top, width, height = box
    radii = ((x - left - width / 2) / (width / 2)) ** 2 + (
        (y - top - height / 2) / (height / 2)
    ) ** 2
    return radii <= 1


def coded(shape):
    code = mask_utils.encode(np.asfortranarray(shape.astype(np.uint8)))
    return dict(code, counts=code["counts"].decode())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_precision_is_that_of_plain_pycocotools(tmp_path, kind, seed):
    content, found = crowded(seed)
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content))
    detections = []
    for image, label, box, score in found:
        detections.append(dict(image_id=image, category_id=label, score=score))
        detections[-1] |= (
            dict(segmentation=coded(ellipse(box))) if kind == "segm" else dict(bbox=box.tolist())
        )
    truth = COCO(str(path))
    plain = COCOeval(truth, truth.loadRes([dict(one) for one in detections]), kind)
    plain.evaluate()
    plain.accumulate()
    plain.summarize()

    metric = METRICS.build(dict(type="CocoMetric", ann_file=str(path), metric=kind))
    metric.dataset_meta = dict(classes=NAMES)
    for image in content["images"]:
        own = [row for row in found if row[0] == image["id"]]
        boxes = torch.tensor(
            np.array([[*box[:2], *(box[:2] + box[2:])] for *_, box, _ in own]), dtype=torch.float64
        )
        instances = dict(
            bboxes=boxes, labels=torch.tensor([label - 1 for _, label, _, _ in own]),
            scores=torch.tensor([score for *_, score in own], dtype=torch.float64),
        )  # fmt: skip
        if kind == "segm":
            instances["masks"] = torch.tensor(np.stack([ellipse(box) for *_, box, _ in own]))
        sample = dict(
            pred_instances=instances,
            img_id=image["id"],
            ori_shape=(240, 320),
            img_path=image["file_name"],
        )
        metric.process({}, [sample])
    measured = metric.evaluate(len(content["images"]))
    names = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
    expected = [
        math.nan if value == -1 else value for value in plain.stats[:6].tolist()
    ]  # without such objects
    assert [measured[f"coco/{kind}_{name}"] for name in names] == pytest.approx(
        expected, abs=6e-4, nan_ok=True
    )
    assert 0.05 < measured[f"coco/{kind}_mAP"] < 0.95

    images = [image["id"] for image in content["images"]]
    curves = precision_curves(COCO(str(path)), detections, [1, 2, 3, 4], images, kind)
    assert np.array_equal(curves, plain.eval["precision"][:, :, :, 0, -1])
