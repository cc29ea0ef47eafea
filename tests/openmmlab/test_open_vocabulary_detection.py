"""Open-vocabulary detection: fusion and average precision by hand, words changed at test, configs
on tiny data."""

import json
import math

import numpy as np
import pytest
import torch
from helpers.cases import each
from PIL import Image

pytest.importorskip("open_clip")
from helpers.open_vocabulary import (
    CONFIGS,
    RIVALS,
    SMALL,
    built,
    check_what_trains,
    one_step,
    small,
)
from helpers.shapes.detection import OpenVocabScenesDataset, scene_classes
from helpers.shapes.export import export

from hypvision.clip.regions import fuse_scores, pool_boxes, pool_masks, region_logits
from hypvision.engine.config import load_config
from hypvision.engine.predicting import predictor_of, trained_model, untrained_model
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train
from hypvision.inference import Boxes, predict
from hypvision.inference.predictors import Request
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.open_vocabulary.detection import (
    OpenVocabBBoxHead,
    OpenVocabCocoDataset,
    OpenVocabCocoMetric,
    OpenVocabRoIHead,
)
from hypvision.openmmlab.open_vocabulary.vocabulary import ClipScores, groups_of
from hypvision.openmmlab.pyramid import BlockPyramid

SCENES = "hyperclip-det.py"


def test_fusion_by_hand():
    trained, clip = torch.tensor([[0.5, 0.2]]), torch.tensor([[0.1, 0.9]])
    found = fuse_scores(trained, clip, torch.tensor([True, False]), alpha=0.1, beta=0.8)
    assert found[0].tolist() == pytest.approx([0.5**0.9 * 0.1**0.1, 0.2**0.2 * 0.9**0.8])
    seen = torch.tensor([True, True])
    assert torch.allclose(fuse_scores(trained, clip, seen, 0.0, 1.0), trained)
    assert torch.allclose(fuse_scores(trained, clip, ~seen, 0.0, 1.0), clip)
    with pytest.raises(HypvisionError, match="numbers from 0 to 1"):
        fuse_scores(trained, clip, seen, 0.1, 1.8)
    with pytest.raises(HypvisionError, match="numbers from 0 to 1"):
        OpenVocabRoIHead(alpha=-1.0, bbox_roi_extractor=None, bbox_head=None)


def test_a_misspelt_option_of_the_detector():
    config = load_config(SMALL / SCENES, {"model.template": "a photo of a {}."})
    with pytest.raises(
        HypvisionError, match="HyperCLIPDetector an argument 'template', .* Did you mean templates"
    ):
        untrained_model(config)


def test_pooling_by_hand():
    features = torch.arange(16.0).reshape(1, 1, 4, 4)  # one patch is 8 x 8 pixels
    rois = torch.tensor(
        [[0, 0, 0, 32, 32], [0, 8, 8, 24, 16], [0, 24, 24, 32, 32]], dtype=torch.float32
    )
    # A bin is sampled at regular points, which a whole map sees clamped at its borders.
    assert pool_boxes(features, rois, 1 / 8).flatten().tolist() == pytest.approx(
        [7.5, 5.5, 15.0], abs=0.2
    )
    masks = torch.zeros(1, 3, 32, 32)
    masks[0, 0], masks[0, 1, 8:16, 8:24] = 1, 1
    assert pool_masks(features, masks).flatten().tolist() == pytest.approx([7.5, 5.5, 0.0])
    masks[0, 2, 0, 0], masks[0, 2, 0, 8:11] = (
        1,
        1,
    )  # a pixel of the first patch, three of the second
    assert float(pool_masks(features, masks)[0, 2]) == pytest.approx(0.75)
    text = torch.tensor([[[2.0, 0.0]], [[1.0, 1.0]]])
    assert region_logits(torch.tensor([[0.0, 5.0]]), text, 10.0)[0].tolist() == pytest.approx(
        [0, 10 / math.sqrt(2)]
    )


def test_box_head_compares_with_any_number_of_texts():
    head = OpenVocabBBoxHead(embedding_size=8, in_channels=4, num_shared_fcs=1, fc_out_channels=16,
    roi_feat_size=2,
                             temperature=3.0, background_weight=0.25)  # fmt: skip
    embeddings, boxes = head(torch.randn(5, 4, 2, 2))
    assert embeddings.shape == (5, 8) and boxes.shape == (5, 4)
    for count in (2, 7):
        assert head.classifier(embeddings, torch.randn(count, 3, 8)).shape == (5, count + 1)
    logits = head.classifier(head.classifier.nothing.detach()[None], torch.zeros(1, 1, 8))
    assert logits[0].tolist() == pytest.approx(
        [0.0, 3.0], abs=1e-4
    )  # parallel to the background, nothing of the class


def test_pyramid_and_its_mistakes():
    maps = [torch.randn(2, 8, 4, 4, requires_grad=True) for _ in range(3)]
    found = BlockPyramid([8, 8, 8], 16, (2, 1, 0.5), num_outs=4)(maps)
    assert [tuple(x.shape) for x in found] == [
        (2, 16, 8, 8),
        (2, 16, 4, 4),
        (2, 16, 2, 2),
        (2, 16, 1, 1),
    ]
    found[0].sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in maps)
    for scales, outs in (((1, 2, 4), 3), ((2, 1), 3), ((4, 2, 1), 2), ((3, 2, 1), 3)):
        with pytest.raises(HypvisionError, match=r"model\.neck takes"):
            BlockPyramid([8, 8, 8], 16, scales, outs)


def measure(predictions, truth, classes=("cat", "dog", "cow"), **options):
    """One image for each pair of lists; (label, box, score) and (label, box)."""
    metric = OpenVocabCocoMetric(**options)
    metric.dataset_meta = dict(classes=classes)
    samples = []
    for number, (found, true) in enumerate(zip(predictions, truth)):
        labels, boxes, scores = zip(*found) if found else ((), (), ())
        instances = dict(
            bboxes=torch.from_numpy(np.array(boxes, dtype=np.float32)).reshape(-1, 4),
            labels=torch.tensor(labels, dtype=torch.long),
            scores=torch.tensor(scores),
        )
        annotations = [dict(bbox=box, bbox_label=label) for label, box in true]
        samples.append(
            dict(
                pred_instances=instances, img_id=number, ori_shape=(100, 100), instances=annotations
            )
        )
    metric.process({}, samples)
    return metric.evaluate(len(samples))


def test_average_precision_by_hand():
    box, other = [0, 0, 10, 10], [50, 50, 70, 70]
    half = [0, 0, 10, 5.5]  # IoU 0.55 with box: right at 0.5 and 0.55, wrong above
    truth = [[(0, box), (1, other)], [(0, box)]]
    groups = dict(base=["cat"], novel=["dog"], none=["cow"])
    # cat: a hit, then a box in empty space, then the second hit: precision 1 up to recall 0.5, then
    # 2/3.
    found = measure(
        [[(0, box, 0.9), (0, other, 0.8)], [(0, box, 0.7), (1, other, 0.9)]], truth, groups=groups
    )
    expected = (51 * 1 + 50 * 2 / 3) / 101  # COCO reads the curve at 101 recalls
    assert found["ov/AP50_base"] == pytest.approx(100 * expected, abs=0.01)
    assert found["ov/AP50_novel"] == 0.0  # right box, wrong image
    assert math.isnan(found["ov/AP50_none"])  # no cow anywhere
    assert found["ov/AP50"] == pytest.approx(50 * expected, abs=0.01)  # cow does not count
    found = measure([[(1, other, 0.2)], [(0, half, 0.7)]], truth, groups=groups)
    assert found["ov/AP50_novel"] == 100.0
    assert found["ov/AP50_base"] == pytest.approx(100 * 51 / 101, abs=0.01)  # one of two
    assert found["ov/AP"] == pytest.approx((100 + 0.2 * 100 * 51 / 101) / 2, abs=0.01)
    assert measure([[], []], truth)["ov/AP50"] == 0.0
    with pytest.raises(HypvisionError, match="group 'novel' has 'horse'"):
        measure([[], []], truth, groups=dict(novel=["horse"]))
    assert groups_of(("a", "b"), None) == {}


def test_detections_are_written_in_coco_s_format(tmp_path):
    measure([[(1, [2, 3, 10, 9], 0.5)], []], [[], []], outfile_prefix=str(tmp_path / "new/found"))
    expected = dict(image_id=0, category_id=1, bbox=[2.0, 3.0, 8.0, 6.0], score=0.5)
    assert json.loads((tmp_path / "new/found.bbox.json").read_text()) == [expected]


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Six scenes under COCO's names."""
    from mmdet.datasets import CocoDataset

    root = tmp_path_factory.mktemp("coco")
    export(root / "coco", "coco", 4, 2, 64)
    for path in (root / "coco/annotations").glob("instances_*.json"):
        content = json.loads(path.read_text())
        names = CocoDataset.METAINFO["classes"]
        content["categories"] = [dict(id=i, name=name) for i, name in enumerate(names, 1)]
        path.write_text(json.dumps(content))
    return root / "coco"


def dataset(root, **changes):
    options = dict(data_root=f"{root}/", ann_file="annotations/instances_train2017.json",
    pipeline=[],
                   data_prefix=dict(img="train2017/"), classes="coco65")  # fmt: skip
    return OpenVocabCocoDataset(**{**options, **changes})


def test_data_set_and_its_mistakes(coco, tmp_path):
    every = dataset(coco, classes="coco65")
    base = dataset(coco, classes="coco65", ignore_classes="coco17")
    assert base.metainfo["classes"] == dataset(coco, classes="coco48").metainfo["classes"]
    count = [sum(len(data[i]["instances"]) for i in range(len(data))) for data in (every, base)]
    novel = dataset(coco, classes="coco17")
    assert count[0] - count[1] == sum(len(novel[i]["instances"]) for i in range(len(novel))) > 0
    for match, changes in (
        ("is empty", dict(classes=[])),
        ("more than once", dict(classes=["cat", "cat"])),
        ("There is no class list", dict(classes="coco47")),
        ("ignore_classes has 'unicorn'", dict(ignore_classes=["unicorn"])),
        ("'unicorn'", dict(classes=["person", "unicorn"])),
        ("is empty", dict(classes="coco17", ignore_classes="coco17")),
    ):
        with pytest.raises(HypvisionError, match=match):
            dataset(coco, **changes)
    content = json.loads((coco / "annotations/instances_train2017.json").read_text())
    content["annotations"][0]["category_id"] = 999
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(
        HypvisionError, match="category_id 999, which is none of the file's categories"
    ):
        dataset(coco, ann_file=str(tmp_path / "wrong.json"))


def test_drawn_scenes():
    assert scene_classes("shape", "base") + scene_classes(
        "shape", "novel", ground=True
    ) != scene_classes("shape")
    pipeline = [dict(type="mmdet.PackDetInputs", meta_keys=("panoptic_ids", "segments_info"))]
    every, base = (OpenVocabScenesDataset("val", 12, 64, which=which, pipeline=pipeline,
    test_mode=True)
                   for which in ("all", "base"))  # fmt: skip
    novel = scene_classes(which="novel")
    for i in range(12):
        a, b = every[i]["data_samples"], base[i]["data_samples"]
        names = [every.metainfo["classes"][int(label)] for label in a.gt_instances.labels]
        assert [base.metainfo["classes"][int(label)] for label in b.gt_instances.labels] == [
            name for name in names if name not in novel
        ]
        for k, box in enumerate(a.gt_instances.bboxes.tensor):  # boxes are tight
            rows, columns = np.nonzero(a.gt_instances.masks.masks[k])
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    with pytest.raises(HypvisionError, match="level must be one of 'shape', 'colour-shape'"):
        OpenVocabScenesDataset(level="kind", pipeline=[])


def test_the_weight_of_the_loss_of_regions():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    expected = -torch.log_softmax(logits, 1)[:, 0].mean()
    for weight in (0.0, 1.0, 2.5):
        scores = ClipScores()
        scores.set_weights(None, 0.1, 0.8, weight)
        assert scores.region_loss(logits, labels).item() == pytest.approx(weight * expected.item())


TUNING = {
    "adapter": {},
    "frozen": {"model.adapter": None, "model.tune": "frozen"},
    "full": {"model.adapter": None, "model.tune": "full"},
}


@pytest.mark.parametrize(
    "tune",
    [pytest.param(key, marks=[] if key == "adapter" else [pytest.mark.slow]) for key in TUNING],
)
def test_train_and_test(tune, tmp_path):
    torch.manual_seed(0)
    runner = train(small(SCENES, TUNING[tune]), tmp_path)
    model = runner.model
    losses = {key for key in runner.message_hub.log_scalars if "loss" in key}
    assert ("train/loss_region" in losses) == (tune != "frozen") and "train/loss_mask" in losses
    trained = {
        name for name, p in model.named_parameters() if name.startswith("clip.") and p.requires_grad
    }
    assert bool(trained) == (tune != "frozen") and (
        tune != "adapter" or all(".hyperclip." in name for name in trained)
    )
    assert set(model.train_classes) < set(model.test_classes) == set(scene_classes())
    places = dict(out=tmp_path / "report", save=tmp_path / "found.json")
    metrics = run_test(
        small(SCENES, TUNING[tune]), tmp_path / "iter_2.pth", tmp_path / "test", **places
    )
    assert {"ov/AP50", "ov/AP50_base", "ov/AP50_novel"} <= set(metrics)
    assert {path.name for path in tmp_path.glob("found.*.json")} >= {"found.bbox.json"}
    assert (tmp_path / "report/precision_recall.csv").is_file()
    if tune == "adapter":
        check_any_image(model, tmp_path)


def check_any_image(trained, folder):
    """The model of the checkpoint on images of its own, with words of its own."""
    model = trained_model(small(SCENES), folder / "iter_2.pth")
    own = trained.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    pixels = np.random.default_rng(0).integers(0, 255, (40, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")
    config = small(SCENES, {"model.test_cfg.rcnn.score_thr": 0.0})
    request = Request(config, folder / "iter_2.pth", classes=["disk", "zebra"], score=0.0)
    predictor = predictor_of(request)
    file, array = (
        predict(source, predictor, expect=Boxes)[0].result for source in (folder / "a.png", pixels)
    )
    assert (
        len(file.boxes)
        and set(file.labels.tolist()) <= {0, 1}
        and file.masks.shape[1:] == (40, 120)
    )
    assert (
        (file.boxes >= 0).all()
        and (file.boxes[:, 2] <= 120).all()
        and (file.boxes[:, 3] <= 40).all()
    )
    np.testing.assert_allclose(file.boxes, array.boxes)


def samples(count, side=64):
    from mmdet.structures import DetDataSample

    meta = dict(
        img_shape=(side, side),
        ori_shape=(side, side),
        scale_factor=(1.0, 1.0),
        batch_input_shape=(side, side),
    )
    return [DetDataSample(metainfo=dict(meta, img_id=i)) for i in range(count)]


def test_words_change_at_test():
    model = built(SCENES)
    model.test_cfg.rcnn.score_thr = model.roi_head.test_cfg.score_thr = 0.0
    images = [torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8) for _ in range(2)]

    def found(names):
        model.set_test_classes(names)
        return [
            s.pred_instances for s in model.test_step(dict(inputs=images, data_samples=samples(2)))
        ]

    three = found(["disk", "red cow", "cross"])
    assert all(
        len(p) and set(p.labels.tolist()) <= {0, 1, 2} and p.masks.shape[1:] == (64, 64)
        for p in three
    )
    assert model.seen(model.test_classes).tolist() == [True, False, False]
    assert all(len(p.bboxes) and p.labels.max() == 0 for p in found(["zebra"]))
    again = found(["disk", "red cow", "cross"])
    assert all(
        torch.allclose(a.scores, b.scores) and torch.equal(a.labels, b.labels)
        for a, b in zip(three, again)
    )
    for match, names in (("is empty", []), ("more than once", ["cat", "cat"])):
        with pytest.raises(HypvisionError, match=match):
            model.set_test_classes(names)
    model.train_classes = ()
    with pytest.raises(HypvisionError, match=r"Set model\.train_classes"):
        found(["zebra"])


def test_features_that_are_not_finite_are_an_error_and_not_an_empty_result():
    """The filters would drop boxes and scores that are NaN."""
    model = built(SCENES)
    images = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8)
    for block in (model.clip.visual.transformer.resblocks[-1], model.neck):
        copy = {name: value.clone() for name, value in block.state_dict().items()}
        with torch.no_grad():
            next(block.parameters()).fill_(torch.nan)
        given = samples(2)
        given[0].set_metainfo(dict(img_path="street.jpg"))
        with pytest.raises(
            HypvisionError, match=r"A feature of the image 'street\.jpg' is not finite"
        ):
            model.test_step(dict(inputs=list(images), data_samples=given))
        block.load_state_dict(copy)
    model.test_step(dict(inputs=list(images), data_samples=samples(2)))


def test_scores_are_the_fusion():
    """Scores at threshold zero without suppression, against the formula written out."""
    model = built(SCENES)
    head = model.roi_head
    x = model.extract_feat(torch.randn(1, 3, 64, 64))
    from mmengine.config import ConfigDict
    from mmengine.structures import InstanceData

    proposal = torch.tensor([[8.0, 8.0, 40.0, 40.0]])
    config = ConfigDict(score_thr=-1.0, nms=dict(type="nms", iou_threshold=1.0), max_per_img=100)
    meta = dict(img_shape=(64, 64), scale_factor=(2.0, 2.0))
    plain, halved = (
        head.predict_bbox(x, [meta], [InstanceData(bboxes=proposal)], config, rescale=rescale)[0]
        for rescale in (False, True)
    )
    nothing = head.predict_bbox(
        x, [meta], [InstanceData(bboxes=proposal[:0])], config, rescale=True
    )[0]
    assert nothing.bboxes.shape == (0, 4) and len(nothing.scores) == len(nothing.labels) == 0
    order = plain.labels.argsort()
    outputs = head._bbox_forward(x, torch.cat([torch.zeros(1, 1), proposal], 1))
    box = head.bbox_head.bbox_coder.decode(
        proposal, outputs["bbox_pred"].detach(), max_shape=(64, 64)
    )
    pooled = torch.nn.functional.normalize(
        pool_boxes(x.dense, torch.cat([torch.zeros(1, 1), box], 1), 1 / 8), dim=-1
    )
    text = torch.nn.functional.normalize(x.text.mean(1), dim=-1)
    clip = (float(model.clip.logit_scale.exp()) * pooled @ text.T).detach().softmax(-1)[0]
    trained = outputs["cls_score"].detach().softmax(-1)[0, :-1]
    for k, name in enumerate(model.test_classes):
        a = 0.1 if name in model.train_classes else 0.8
        expected = float(trained[k] ** (1 - a) * clip[k] ** a)
        assert float(plain.scores[order][k]) == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(plain.bboxes, box.expand_as(plain.bboxes)) and torch.allclose(
        halved.bboxes, plain.bboxes / 2
    )


@each("tune, boxes", [("adapter", None), ("full", None), ("adapter", 0)])
def test_every_parameter_that_trains_has_a_gradient(tune, boxes):
    """Distributed training waits for the others; images without boxes have gradients, too."""
    from mmengine.dataset import pseudo_collate

    model = built(
        SCENES, **{key.removeprefix("model."): value for key, value in TUNING[tune].items()}
    ).train()
    data = OpenVocabScenesDataset(
        "train", 4, 64, which="base", pipeline=[dict(type="mmdet.PackDetInputs")]
    )
    batch = pseudo_collate([data[0], data[1]])
    for sample in batch["data_samples"]:
        sample.gt_instances = sample.gt_instances[:boxes]
    loss, _ = model.parse_losses(model(**model.data_preprocessor(batch, True), mode="loss"))
    loss.backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert [
        name for name, grad in trained.items() if grad is None or not grad.isfinite().all()
    ] == []


def test_mistakes_in_the_config(tmp_path):
    with pytest.raises(
        HypvisionError, match=r"data have 12 classes, but model\.train_classes has 2 names"
    ):
        train(small(SCENES, {"model.train_classes": ["disk", "car"]}), tmp_path)
    with pytest.raises(
        HypvisionError, match="train_classes has the names of the train data in another order"
    ):
        train(
            small(SCENES, {"model.train_classes": scene_classes(which="base")[::-1]}),
            tmp_path / "order",
        )
    with pytest.raises(HypvisionError, match="not a multiple of CLIP's patch of 8 pixels"):
        built(SCENES, data_preprocessor=dict(pad_size_divisor=12))
    with pytest.raises(HypvisionError, match="Leave out one of the two"):
        built(SCENES, tune="frozen")


DETECTION = sorted(path.name for path in CONFIGS.glob("*-det-*coco*.py"))


def shrink(name, coco):
    """A COCO config on six images, its CLIP replaced by a small random one, the heads made
    narrow."""
    config = one_step(name, coco)
    model = config.model
    strides = [2, 4, 8, 16, 32]
    if model.get("backbone"):
        model.backbone.update(depth=18, init_cfg=None)
        model.neck.update(in_channels=[64, 128, 256, 512])
        strides = [4, 8, 16, 32, 64]
    else:
        model.hooks = (0, 1, 2, 3)
    model.rpn_head.update(in_channels=32, feat_channels=32)
    model.rpn_head.anchor_generator.strides = strides
    for extractor in (model.roi_head.bbox_roi_extractor, model.roi_head.mask_roi_extractor):
        extractor.update(out_channels=32, featmap_strides=strides[:4])
    model.roi_head.bbox_head.update(in_channels=32, conv_out_channels=32, fc_out_channels=32)
    model.roi_head.mask_head.update(in_channels=32, conv_out_channels=32)
    model.train_cfg.rpn_proposal.update(nms_pre=100, max_per_img=50)
    model.train_cfg.rcnn.sampler.num = 32
    model.test_cfg.rpn.update(nms_pre=100, max_per_img=50)
    model.test_cfg.rcnn.max_per_img = 5
    config.train_dataloader.dataset.filter_cfg = None
    return config


QUICK = "hyperclip-det-vitb16_8xb8-3e_coco48-17.py"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in DETECTION],
)
def test_config_takes_a_step_and_tests(name, coco, tmp_path):
    runner = train(shrink(name, coco), tmp_path)
    assert runner.iter == 1 and runner.message_hub.get_scalar("train/loss").current() > 0
    check_what_trains(runner.model, name)
    metrics = run_test(shrink(name, coco), tmp_path / "iter_1.pth", tmp_path / "test")
    assert {"ov/AP50", "ov/AP50_base", "ov/AP50_novel"} <= set(metrics)


def test_configs_are_there():
    assert {name.partition("-det-")[0] for name in DETECTION} == {"hyperclip", "frozen", *RIVALS}
