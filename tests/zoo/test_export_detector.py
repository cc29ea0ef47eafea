"""Whole detectors as functions of an image: what mmdet finds, in PyTorch and in the files of other
runtimes."""

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmdet")
from helpers.task_models import HEADS, SIZE, detector
from mmdet.structures import DetDataSample

from hypvision.io.errors import HypvisionError
from hypvision.zoo.export import export_network
from hypvision.zoo.export_detector import DetectorNetwork


def image(seed=0):
    return torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


def found_by_mmdet(model, x):
    shape = dict(
        img_shape=SIZE,
        ori_shape=SIZE,
        pad_shape=SIZE,
        batch_input_shape=SIZE,
        scale_factor=(1.0, 1.0),
    )
    [sample] = model.predict(x, [DetDataSample(metainfo=shape)], rescale=False)
    return sample.pred_instances


@each("name", HEADS)
def test_it_finds_what_mmdet_finds(name):
    model = detector(name)
    network = DetectorNetwork(model, SIZE)
    with torch.no_grad():
        for seed in range(2):
            expected, found = found_by_mmdet(model, image(seed)), network(image(seed))
            boxes, scores, labels, *masks = found
            count = int((scores > 0).sum())
            assert count == len(expected) > 3
            assert (scores[:-1] >= scores[1:]).all()
            assert (scores[count:] == 0).all()
            torch.testing.assert_close(scores[:count], expected.scores)
            torch.testing.assert_close(boxes[:count], expected.bboxes, rtol=1e-4, atol=1e-3)
            assert torch.equal(labels[:count], expected.labels)
            if masks:
                own = model.roi_head.mask_head._predict_by_feat_single(
                    masks[0][:count, None].expand(-1, 3, -1, -1).logit(), boxes[:count].clone(),
                    labels[:count], dict(scale_factor=(1.0, 1.0), ori_shape=SIZE),
                    model.roi_head.test_cfg, rescale=True,
                )  # fmt: skip
                assert (
                    own == expected.masks
                ).float().mean() > 0.999  # but where a probability ties with a half


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,kind",
    [("retinanet", "onnx"), ("fcos", "torchexport"), ("faster_rcnn", "onnx"),
     ("mask_rcnn", "torchexport"), ("mask_rcnn", "onnx")],
)  # fmt: skip
def test_files_find_what_pytorch_finds(tmp_path, name, kind):
    if kind == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
    network, path = DetectorNetwork(detector(name), SIZE).eval(), tmp_path / "model"
    names = ("boxes", "scores", "labels", "masks")
    report = export_network(network, (3, *SIZE), kind, path, output=names)
    assert report.difference < 1e-3
    assert report.shapes == ((1, 3, *SIZE),)
    assert "empty place" in str(report)
    x = image(7)  # another one than the check used
    if kind == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [o.name for o in session.get_outputs()] == list(names[: 3 + (name == "mask_rcnn")])
        got = [torch.from_numpy(y) for y in session.run(None, {"images": x.numpy()})]
    else:
        got = torch.export.load(path).module()(x)
    with torch.no_grad():
        expected = network(x)
    assert (expected[1] > 0).sum() > 3 and network.difference(got, expected) < 1e-3


def test_a_difference_is_seen():
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 20, 20], [0, 0, 1, 1]])
    scores, labels = torch.tensor([0.9, 0.5, 0.0]), torch.tensor([0, 1, 0])
    network = DetectorNetwork(detector("retinanet"), SIZE)
    expected = (boxes, scores, labels)
    order = torch.tensor([1, 0, 2])
    assert network.difference([value[order] for value in expected], expected) == 0
    assert network.difference((boxes + 9.6, scores, labels), expected) == pytest.approx(0.1)
    assert network.difference((boxes, scores, torch.tensor([2, 2, 2])), expected) == float("inf")
    assert network.difference(
        (boxes, torch.tensor([0.9, 0.0, 0.0]), labels), expected
    ) == pytest.approx(0.5)
    for broken in ((boxes * torch.nan, scores, labels), (boxes, scores * torch.nan, labels)):
        assert network.difference(broken, expected) == float("inf")


def test_other_ways_to_find_boxes_are_refused():
    model = detector("retinanet")
    model.bbox_head.__class__ = type(
        "OwnHead", (type(model.bbox_head),), dict(predict_by_feat=lambda self: None)
    )
    with pytest.raises(
        HypvisionError, match=r"OwnHead finds boxes in a way of its own.*--part features"
    ):
        DetectorNetwork(model, SIZE)
    soft = detector(
        "faster_rcnn", **{"model.test_cfg.rcnn.nms": dict(type="soft_nms", iou_threshold=0.5)}
    )
    with pytest.raises(HypvisionError, match=r"'soft_nms', which no format.*--part features"):
        DetectorNetwork(soft, SIZE)
    nms = dict(type="nms", iou_threshold=0.5, class_agnostic=True, split_thr=100)
    for name, part, option, value in (
        ("retinanet", "test_cfg", "iou_thr", 0.1),
        ("mask_rcnn", "test_cfg.rpn", "score_threshold", 0.2),
        ("mask_rcnn", "test_cfg.rcnn", "max_num", 5),
    ):
        with pytest.raises(HypvisionError, match=f"nms of test_cfg has {option}, which"):
            DetectorNetwork(detector(name, **{f"model.{part}.nms": nms | {option: value}}), SIZE)
    DetectorNetwork(detector("retinanet", **{"model.test_cfg.nms": nms}), SIZE)
