"""Open-vocabulary panoptic segmentation: PQ, merging and fusion by hand, words changed at test,
tiny data."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
from helpers.open_vocabulary import CONFIGS, RIVALS, built, check_what_trains, one_step, small
from helpers.shapes.detection import scene_classes
from helpers.shapes.images import make_scene

from hypvision.data.classes import load_classes
from hypvision.engine.config import load_config
from hypvision.engine.predicting import predictor_of
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train
from hypvision.inference import Segments, predict
from hypvision.inference.predictors import Request
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.open_vocabulary.panoptic import (
    LoadPanopticSegments,
    OpenVocabPanopticDataset,
    OpenVocabPanopticMetric,
    merge_segments,
    panoptic_counts,
)

SCENES = "hyperclip-panoptic.py"


def test_counts_by_hand():
    """Ten pixels in a row; classes a and b."""
    truth = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0, 0]])
    segments = [dict(id=1, category=0, iscrowd=0), dict(id=2, category=1, iscrowd=0)]
    found = np.array([[5, 5, 5, 6, 6, 6, 6, 6, 7, 7]])  # 7 lies in the void
    labels = {5: 0, 6: 1, 7: 1}
    # a: 3 of 4; b: the union of 3 and 5 is 5 pixels, of which one is void and does not count.
    expected = [[3 / 4, 1, 0, 0], [3 / 4, 1, 0, 0]]
    assert panoptic_counts(found, labels, truth, segments, 2).tolist() == expected
    # The class is wrong: a false positive of b, a false negative of a.
    assert panoptic_counts(found, {5: 1, 6: 1, 7: 1}, truth, segments, 2).tolist() == [
        [0, 0, 0, 1],
        [0.75, 1, 1, 0],
    ]
    # An IoU of exactly one half does not match.
    assert panoptic_counts(np.array([[5, 5, 0, 0, 0, 0, 0, 0, 0, 0]]), {5: 0}, truth, segments,
    2).tolist() == [
        [0, 0, 1, 1], [0, 0, 0, 1]
    ]  # fmt: skip
    # A crowd never counts as missed, and a segment of its class inside it never counts as wrong.
    segments[0]["iscrowd"] = 1
    assert panoptic_counts(found, labels, truth, segments, 2).tolist() == [
        [0, 0, 0, 0],
        [0.75, 1, 0, 0],
    ]
    assert panoptic_counts(found, {5: 1, 6: 1, 7: 1}, truth, segments, 2)[:, 2].tolist() == [0, 1]
    # Pixels whose number belongs to no segment are ignored.
    assert panoptic_counts(found, {}, truth, segments, 2).tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]


def measure(
    predicted, truth, segments, classes=("cat", "dog", "sky"), things=("cat", "dog"), **options
):
    metric = OpenVocabPanopticMetric(**options)
    metric.dataset_meta = dict(classes=classes, thing_classes=things)
    sample = dict(
        pred_panoptic_seg=dict(sem_seg=torch.tensor(predicted)[None]), segments_info=segments
    )
    metric.process({}, [dict(sample, panoptic_ids=np.array(truth), img_path="a.png")])
    return metric.evaluate(1)


def test_quality_by_hand():
    segments = [
        dict(id=1, category=0, iscrowd=0),
        dict(id=2, category=2, iscrowd=0),
        dict(id=3, category=0, iscrowd=0),
    ]
    truth = [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]
    # cat 1 with IoU 3/4, the other cat missed, sky right, a dog where the cat is
    predicted = [[1000, 1000, 1000, 3], [2, 2, 2, 2], [2001, 2001, 2001, 2001]]
    found = measure(predicted, truth, segments, groups=dict(novel=["dog"]))
    cat = 0.75 / (1 + 0.5)
    assert found["ov/PQ"] == pytest.approx(100 * (cat + 0 + 1) / 3, abs=0.01)
    assert found["ov/SQ"] == pytest.approx(100 * (0.75 + 0 + 1) / 3, abs=0.01)
    assert found["ov/RQ"] == pytest.approx(100 * (1 / 1.5 + 0 + 1) / 3, abs=0.01)
    assert found["ov/PQ_novel"] == 0 and found["ov/PQ_rest"] == pytest.approx(
        50 * (cat + 1), abs=0.01
    )
    assert found["ov/PQ_stuff"] == 100 and found["ov/PQ_things"] == pytest.approx(
        50 * cat, abs=0.01
    )
    with pytest.raises(HypvisionError, match="group 'novel' has 'cow'"):
        measure(predicted, truth, segments, groups=dict(novel=["cow"]))
    with pytest.raises(HypvisionError, match="has the shape"):
        measure([[2]], truth, segments)
    metric = OpenVocabPanopticMetric()
    metric.dataset_meta = dict(classes=("cat",))
    with pytest.raises(HypvisionError, match="lack 'panoptic_ids'"):
        metric.process({}, [dict(pred_panoptic_seg=dict(sem_seg=torch.zeros(1, 2, 2)))])


def test_merging_by_hand():
    masks = torch.zeros(5, 2, 4)
    masks[0, :, :2], masks[1, :, 2:], masks[2, 0, :2], masks[3, 1, 3], masks[4, 0, 2:] = (
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
    )
    scores = torch.tensor([  # thing, stuff, nothing
        [0.9, 0.0, 0.1], [0.0, 0.8, 0.2], [0.7, 0.0, 0.3], [0.3, 0.2, 0.5], [0.4, 0.3, 0.3]
    ])  # fmt: skip
    # 0 and 1 win their halves; 2 lies under 0; 3 is nothing; 4 is not sure enough
    found = merge_segments(scores, masks, [True, False], score_thr=0.5, overlap_thr=0.8)
    assert found.tolist() == [[1000, 1000, 1, 1]] * 2
    # Two masks of stuff are one segment, two of a thing are two; the rest is nothing.
    masks = torch.zeros(4, 1, 5)
    for k in range(4):
        masks[k, 0, k] = 1
    scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert merge_segments(scores, masks, [True, False], 0.5, 0.8)[0, :4].tolist() == [
        1,
        1,
        1000,
        2000,
    ]
    assert merge_segments(scores, masks, [True, False], 0.5, 0.8)[0, 4] == 2
    assert merge_segments(scores[:0], masks[:0], [True, False], 0.5, 0.8).tolist() == [[2] * 5]
    with pytest.raises(HypvisionError, match="room for 999 classes; the list has 1000"):
        merge_segments(torch.rand(1, 1001), masks[:1], [True] * 1000, 0.5, 0.8)


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Four training and two test scenes in COCO's panoptic format, the shapes called by COCO's
    names."""
    root = tmp_path_factory.mktemp("panoptic") / "coco"
    names = load_classes("coco133")
    shapes = {name: k for k, name in enumerate(scene_classes())}
    categories = [
        dict(id=10 + k, name=f"official {name}", isthing=int(k < 80))
        for k, name in enumerate(names)
    ]
    for split, count in (("train", 4), ("val", 2)):
        content = dict(images=[], annotations=[], categories=categories)
        folder = root / f"annotations/panoptic_{split}2017"
        folder.mkdir(parents=True)
        (root / f"{split}2017").mkdir()
        for i in range(count):
            scene = make_scene(i, split, 64)
            scene.image.save(root / f"{split}2017/{i}.jpg")
            ids = np.where(scene.instances > 0, scene.instances.astype(np.int64) * 300, 7)
            Image.fromarray(np.stack([ids % 256, ids // 256, 0 * ids], -1).astype(np.uint8)).save(
                folder / f"{i}.png"
            )
            segments = [dict(id=7, category_id=10 + 123, iscrowd=0)]
            segments += [
                dict(id=300 * k, category_id=10 + shapes[item.shape], iscrowd=0)
                for k, item in enumerate(scene.objects, 1)
            ]
            content["images"].append(dict(id=i, file_name=f"{i}.jpg", height=64, width=64))
            content["annotations"].append(
                dict(image_id=i, file_name=f"{i}.png", segments_info=segments)
            )
        (root / f"annotations/panoptic_{split}2017.json").write_text(json.dumps(content))
    return root


def dataset(root, **changes):
    options = dict(data_root=f"{root}/", ann_file="annotations/panoptic_train2017.json",
    pipeline=[], classes="coco133",
                   data_prefix=dict(img="train2017/",
                   seg="annotations/panoptic_train2017/"))  # fmt: skip
    return OpenVocabPanopticDataset(**{**options, **changes})


def test_data_set(coco):
    data = dataset(coco)
    assert (
        len(data) == 4
        and len(data.metainfo["thing_classes"]) == 80
        and len(data.metainfo["classes"]) == 133
    )
    assert dataset(coco, classes=None).metainfo["classes"][0] == "official person"
    item = dict(data.get_data_info(1), ori_shape=(64, 64))
    results = LoadPanopticSegments()(item)
    scene = make_scene(1, "train", 64)
    assert len(results["gt_masks"]) == 1 + len(scene.objects)
    assert (results["gt_masks"].masks[0].astype(bool) == (scene.instances == 0)).all()
    assert results["gt_bboxes"].tensor[1:].tolist() == [list(item.box) for item in scene.objects]
    base = dataset(coco, ignore_classes="coco17")
    kept = base.metainfo["classes"]
    assert len(kept) == 116 and len(base.metainfo["thing_classes"]) == 63
    for k in range(4):
        results = LoadPanopticSegments()(dict(base.get_data_info(k), ori_shape=(64, 64)))
        all_ = LoadPanopticSegments()(dict(data.get_data_info(k), ori_shape=(64, 64)))
        names = [data.metainfo["classes"][label] for label in all_["gt_bboxes_labels"]]
        assert [kept[label] for label in results["gt_bboxes_labels"]] == [
            name for name in names if name in kept
        ]
        gone = sum(
            int(m.sum()) for m, name in zip(all_["gt_masks"].masks, names) if name not in kept
        )
        assert int((results["panoptic_ids"] == 0).sum()) == gone


def test_mistakes_in_the_data(coco, tmp_path):
    path = coco / "annotations/panoptic_train2017.json"

    def changed(change):
        content = json.loads(path.read_text())
        change(content)
        (tmp_path / "wrong.json").write_text(json.dumps(content))
        return dict(ann_file=str(tmp_path / "wrong.json"))

    (tmp_path / "damaged.json").write_text("{")
    for match, changes in (
        ("is empty", dict(classes=[])),
        ("more than once", dict(classes=["cat", "cat"])),
        ("has 133 categories, but the class list has 150 names", dict(classes="ade150")),
        ("ignore_classes has 'unicorn'", dict(ignore_classes=["unicorn"])),
        ("There is no file '.*none.json'", dict(ann_file="annotations/none.json")),
        ("damaged.json' cannot be read as JSON", dict(ann_file=str(tmp_path / "damaged.json"))),
    ):
        with pytest.raises(HypvisionError, match=match):
            dataset(coco, **changes)
    for match, change in (
        ("lacks one of the lists images, annotations, categories", lambda c: c.pop("categories")),
        ("belong to the image_id 77", lambda c: c["annotations"][0].update(image_id=77)),
        (
            "category_id 999, which is none",
            lambda c: c["annotations"][0]["segments_info"][0].update(category_id=999),
        ),
        (
            "category_id {}, which is none",
            lambda c: c["annotations"][0]["segments_info"][0].update(category_id={}),
        ),
        (
            "a segment of '0.png' is {'id': '7'",
            lambda c: c["annotations"][0]["segments_info"][0].update(id="7"),
        ),
        ("a segment of '0.png' is None", lambda c: c["annotations"][0].update(segments_info=5)),
        (r"images\[1\] .*\(-1, 64\)", lambda c: c["images"][1].update(height=-1)),
        (
            r"images\[1\] \('1.jpg'\) has the id 0, which '0.jpg' has too",
            lambda c: c["images"][1].update(id=0),
        ),
        (
            "no images to learn from.*4 images .without objects",
            lambda c: [a["segments_info"].clear() for a in c["annotations"]],
        ),
    ):
        with pytest.raises(HypvisionError, match=match):
            dataset(coco, **changed(change))
    item = dict(dataset(coco).get_data_info(0), ori_shape=(64, 64))
    for match, changes in (
        ("There is no segment map", dict(seg_map_path=str(tmp_path / "none.png"))),
        ("cannot be read", dict(seg_map_path=str(tmp_path / "damaged.json"))),
        ("has 64 x 64 pixels, its image 32 x 64", dict(ori_shape=(32, 64))),
        (
            "has none of the segments of its annotation",
            dict(segments_info=[dict(id=9**5, category=0, iscrowd=0)]),
        ),
    ):
        with pytest.raises(HypvisionError, match=match):
            LoadPanopticSegments()({**item, **changes})


def test_what_is_left_out_is_counted(coco, tmp_path):
    content = json.loads((coco / "annotations/panoptic_train2017.json").read_text())
    content["images"].append(content["images"][0])
    content["annotations"].pop(1)
    content["annotations"][0]["segments_info"][0]["iscrowd"] = 1
    content["images"][3]["file_name"] = "elsewhere.jpg"
    (tmp_path / "part.json").write_text(json.dumps(content))
    options = dict(ann_file=str(tmp_path / "part.json"), pipeline=[dict(type="LoadImageFromFile")])
    usage = dataset(coco, ignore_classes="coco17", **options).usage
    left_out = {
        (kind, reason): count for kind, count, reason, _ in usage.rows() if kind != "classes"
    }
    segments = [segment for item in content["annotations"][:2] for segment in item["segments_info"]]
    assert (
        left_out.pop(("segments", "used")) + left_out.pop(("segments", "of ignored classes"), 0)
        >= len(segments) - 1
    )
    assert left_out == {
        ("images", "used"): 2, ("images", "listed twice"): 1,
        ("images", "without an annotation"): 1, ("images", "missing on disk"): 1,
        ("segments", "crowd"): 1,
    }  # fmt: skip
    with pytest.raises(
        HypvisionError, match=r"1 of the 3 images .* do not exist, the first is '.*elsewhere\.jpg'"
    ):
        dataset(coco, test_mode=True, **options)


@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_train_and_test(frozen, tmp_path):
    options = {"model.adapter": None, "model.tune": "frozen"} if frozen else {}
    runner = train(small(SCENES, options), tmp_path)
    model = runner.model
    losses = {key for key in runner.message_hub.log_scalars if "loss" in key}
    assert ("train/loss_region" in losses) != frozen and "train/loss_dice" in losses
    assert model.data_things == scene_classes() and model.test_classes == (
        *scene_classes(),
        "grey ground",
    )
    metrics = run_test(small(SCENES, options), tmp_path / "iter_2.pth", tmp_path / "test")
    assert {"ov/PQ", "ov/PQ_base", "ov/PQ_novel", "ov/PQ_stuff"} <= set(metrics)
    if not frozen:
        pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        request = Request(
            small(SCENES), tmp_path / "iter_2.pth", classes=["disk", "sky"], things=["disk"]
        )
        [found] = predict(pixels, predictor_of(request), expect=Segments)
        assert found.result.segments.shape == (40, 60) and set(found.result.labels.tolist()) <= {
            0,
            1,
        }


def samples(count, side=64, original=80):
    from mmdet.structures import DetDataSample

    meta = dict(
        img_shape=(side, side), ori_shape=(original, original), batch_input_shape=(side, side)
    )
    return [DetDataSample(metainfo=dict(meta, img_id=i)) for i in range(count)]


def test_values_that_are_not_finite_are_an_error_and_not_an_empty_result():
    """The filters would drop masks and scores that are NaN."""
    model = built(SCENES)
    images = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8)
    for part in (model.neck, model.panoptic_head.cls_embed, model.panoptic_head.mask_embed):
        copy = {name: value.clone() for name, value in part.state_dict().items()}
        with torch.no_grad():
            next(part.parameters()).fill_(torch.nan)
        with pytest.raises(
            HypvisionError, match="A feature of the image 0 of the data is not finite"
        ):
            model.test_step(dict(inputs=list(images), data_samples=samples(2)))
        part.load_state_dict(copy)
    model.test_step(dict(inputs=list(images), data_samples=samples(2)))


def test_words_change_at_test():
    model = built(SCENES)
    model.test_cfg.update(score_thr=0.0, overlap_thr=0.0)
    with torch.no_grad():
        model.panoptic_head.classifier.nothing.zero_()  # nothing is never the best
        model.panoptic_head.classifier.log_temperature.fill_(0.0)
    images = [torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8) for _ in range(2)]

    def found(*names):
        model.set_test_classes(*names)
        results = model.test_step(dict(inputs=images, data_samples=samples(2)))
        return torch.stack([s.pred_panoptic_seg.sem_seg for s in results])

    three = found(["disk", "red cow", "sky"], ["disk"])
    assert three.shape == (2, 1, 80, 80) and set((three % 1000).unique().tolist()) <= {0, 1, 2, 3}
    assert model.seen(model.test_classes).tolist() == [True, False, False]
    one = found(["zebra"])
    assert set((one % 1000).unique().tolist()) <= {0, 1}
    assert not (found(["zebra"], []) >= 1000).any()  # as stuff
    assert torch.equal(found(["disk", "red cow", "sky"], ["disk"]), three)
    for match, names in (
        ("is empty", ([],)),
        ("more than once", (["cat", "cat"],)),
        ("things has 'dog'", (["cat"], ["dog"])),
    ):
        with pytest.raises(HypvisionError, match=match):
            model.set_test_classes(*names)


def test_fusion_by_hand():
    model = built(SCENES, alpha=0.25, beta=0.75)
    trained, clip = torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([[0.3, 0.7]])
    seen, unseen = 0.75**0.75 * 0.3**0.25, 0.25**0.25 * 0.7**0.75
    found = model.fused_scores(trained, clip, torch.tensor([True, False]))[0].tolist()
    assert found == pytest.approx(
        [0.8 * seen / (seen + unseen), 0.8 * unseen / (seen + unseen), 0.2]
    )
    with pytest.raises(HypvisionError, match="numbers from 0 to 1"):
        built(SCENES, alpha=2.0)


PANOPTIC = sorted(path.name for path in CONFIGS.glob("*-panoptic-*coco*.py"))
QUICK = "hyperclip-panoptic-vitb16_8xb2-50e_coco116-17.py"


def shrink(name, coco):
    """A COCO config on six images, its CLIP replaced by a small random one, the heads made
    narrow."""
    config = one_step(name, coco)
    config.model.hooks = (0, 1, 2, 3)
    head = config.model.panoptic_head
    head.update(in_channels=[32] * 4, feat_channels=32, out_channels=32, num_queries=8)
    head.positional_encoding.num_feats = head.pixel_decoder.positional_encoding.num_feats = 16
    for decoder in (head.transformer_decoder, head.pixel_decoder.encoder):
        decoder.num_layers = 1
        for key, part in decoder.layer_cfg.items():
            part.embed_dims = 32
            if key == "ffn_cfg":
                part.feedforward_channels = 32
    return config


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in PANOPTIC],
)
def test_config_takes_a_step_and_tests(name, coco, tmp_path):
    runner = train(shrink(name, coco), tmp_path)
    assert runner.iter == 1 and runner.message_hub.get_scalar("train/loss").current() > 0
    assert len(runner.model.train_classes) == 116
    check_what_trains(runner.model, name)
    metrics = run_test(shrink(name, coco), tmp_path / "iter_1.pth", tmp_path / "test")
    assert {"ov/PQ", "ov/PQ_novel", "ov/PQ_rest", "ov/PQ_things"} <= set(metrics)


def test_ade_config():
    """Test only, and its words fit its labels; what training knew is told."""
    config = load_config(CONFIGS / "hyperclip-panoptic-vitb16_test-ade150.py")
    assert {name.partition("-panoptic-")[0] for name in PANOPTIC} == {
        "hyperclip",
        "frozen",
        *RIVALS,
    }
    assert "train_dataloader" not in config and config.model.clip.pretrained is None
    assert config.model.test_classes == config.test_dataloader.dataset.classes == "ade150"
    assert {"sky", "grass", "fence"} <= set(load_classes(config.model.train_classes)) & set(
        load_classes("ade150")
    )
