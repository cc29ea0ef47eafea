"""The blocks of docs/own-data.md as they stand on the page, on drawn data of their layouts."""

import json
import re
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement

import numpy as np
import pytest
import timm
import torch
from helpers.engine import make_images, write_config
from helpers.open_vocabulary_segmentation import SMALL, make_folder
from helpers.shapes.export import export

import hypvision.openmmlab  # noqa: F401 - mmcv's operations, before mmdet
from hypvision.engine.config import load_config
from hypvision.engine.predicting import untrained_model
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

PAGE = (Path(__file__).parents[1] / "docs/own-data.md").read_text()
SECTIONS = dict(re.findall(r"## (.+?)\n(.*?)(?=\n## |\Z)", PAGE, flags=re.S))
CLASSES = ("cat", "cow", "dog", "sheep")
TINY = dict(
    dims=(16, 16, 16, 16),
    heads=(2, 2, 2, 2),
    head_dim=8,
    layers=(1, 1, 1, 1),
    mlp_ratios=(2, 2, 2, 2),
    img_size=64,
)


def blocks(section):
    return re.findall(r"```python\n(.*?)```", SECTIONS[section], flags=re.S)


def coco(root, masks=False):
    """Images and boxes, in COCO's JSON without what many tools leave out."""
    export(root, "coco", 4, 2, 64, level="kind")
    for split in ("train", "val"):
        (root / f"{split}2017").rename(root / split)
        content = json.loads((root / f"annotations/instances_{split}2017.json").read_text())
        for category, name in zip(content["categories"], CLASSES):
            category["name"] = name
        for item in content["annotations"]:
            for key in () if masks else ("segmentation", "area", "iscrowd"):
                del item[key]
        (root / f"annotations/{split}.json").write_text(json.dumps(content))
    return root


def voc(root, other=None):
    """The same as VOC's XML; the images are PNG files."""
    coco(root)
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split in ("train", "val"):
        content, names = json.loads((root / f"annotations/{split}.json").read_text()), []
        words = {category["id"]: category["name"] for category in content["categories"]}
        for image in content["images"]:
            name = f"{split}_{image['id']}"
            names.append(name)
            source = root / split / image["file_name"]
            source.rename(root / f"JPEGImages/{name}{source.suffix}")
            tree = Element("annotation")
            for key in ("width", "height"):
                SubElement(
                    tree.find("size")
                    if tree.find("size") is not None
                    else SubElement(tree, "size"),
                    key,
                ).text = str(image[key])
            for item in [
                item for item in content["annotations"] if item["image_id"] == image["id"]
            ]:
                x, y, width, height = item["bbox"]
                entry = SubElement(tree, "object")
                SubElement(entry, "name").text = other or words[item["category_id"]]
                box = SubElement(entry, "bndbox")
                for key, value in dict(
                    xmin=x + 1, ymin=y + 1, xmax=x + width + 1, ymax=y + height + 1
                ).items():
                    SubElement(box, key).text = str(value)
            ElementTree(tree).write(root / f"Annotations/{name}.xml")
        (root / f"ImageSets/Main/{split}.txt").write_text("\n".join(names))
    return root


def run(block, root, folder, **changes):
    """Train and measure for a step of two small images; everything else stands on the page."""
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    (folder / "mine.py").write_text(block)
    slash = "/" * ('data/mine/"' in block)
    config = load_config(folder / "mine.py", {"data_root": f"{root}{slash}"})
    for phase in ("train", "val", "test"):
        loader = config.get(f"{phase}_dataloader")
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        transform = loader.dataset.get("transform")
        if transform is not None:
            transform.input_size = 64
        for step in loader.dataset.get("pipeline", []):
            for key in ("scale", "crop_size"):
                if key in step:
                    step[key] = (64, 64)
    config.train_cfg.update(
        {"max_iters": 1, "val_interval": 1}
        if "max_iters" in config.train_cfg
        else {"max_epochs": 1}
    )
    config.merge_from_dict(changes)
    return train(config, folder / "work")


def small(kind, **more):
    """Options for a small network: of a ``classifier``, a ``segmenter``, ``one`` or ``two`` stages
    of a detector."""
    options = {f"model.backbone.{key}": value for key, value in TINY.items()}
    if kind != "classifier":
        options["model.neck.in_channels"] = [16] * 4
    if kind == "one":
        options |= {
            "model.test_cfg.score_thr": 0.0,
            "model.test_cfg.nms_pre": 20,
            "model.bbox_head.stacked_convs": 1,
        }
    if kind == "two":
        options |= {
            "model.train_cfg.rpn_proposal.max_per_img": 20,
            "model.test_cfg.rpn.max_per_img": 20,
        }
    return {**options, **more}


def test_class_folders(tmp_path):
    make_images(tmp_path / "data", 4, CLASSES)
    usual, scratch = blocks("Classification: class folders")
    for block in (usual, scratch):
        (tmp_path / "page.py").write_text(block)
        loaded = load_config(tmp_path / "page.py").model.backbone
        runner = run(block, tmp_path / "data", tmp_path, **small("classifier"))
        assert runner.message_hub.get_scalar("val/top1").current() >= 0
        assert runner.val_dataloader.dataset.metainfo["classes"] == CLASSES
    assert (loaded.img_size // loaded.patch_size, loaded.locality) == (16, 2)
    assert "Muon" in str(runner.optim_wrapper)


@pytest.mark.slow
def test_few_photos(tmp_path):
    make_images(tmp_path / "data", 4, CLASSES)
    [block] = blocks("Classification: few photos, from trained features")
    runner = run(block, tmp_path / "data", tmp_path)
    (tmp_path / "page.py").write_text(block)
    loaded = load_config(tmp_path / "page.py")
    known = timm.get_pretrained_cfg(
        loaded.model.backbone.model_name
    )  # the weights are made for this normalisation
    for loader in (loaded.train_dataloader, loaded.val_dataloader, loaded.test_dataloader):
        assert (loader.dataset.transform.mean, loader.dataset.transform.std) == (
            known.mean,
            known.std,
        )
    assert loaded.param_scheduler[-1].end == loaded.train_cfg.max_epochs
    assert runner.model.backbone.conv_stem.weight.requires_grad is False
    assert (tmp_path / "work/probe.pth").is_file()
    assert runner.message_hub.get_info("baseline")["top1"] > 25
    assert runner.message_hub.get_scalar("val/top1").current() >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "section", ["Boxes: COCO's JSON", "Boxes and masks", "Semantic segmentation"]
)
def test_new_heads_start_small(tmp_path, section):
    """Logits of deviation 4 killed the features of the classifier."""
    for block in blocks(section):
        (tmp_path / "mine.py").write_text(block)
        model = untrained_model(load_config(tmp_path / "mine.py"))
        model.init_weights()
        last = ("fc_cls", "retina_cls", "conv_cls", "conv_seg", "conv_logits")
        found = {
            name: p.std().item()
            for name, p in model.named_parameters()
            if name.split(".")[-2] in last
        }
        assert found
        assert max(value for name, value in found.items() if name.endswith("weight")) < 0.011


@pytest.mark.slow
def test_hi_mapper_on_class_folders(tmp_path):
    make_images(tmp_path / "data", 4, CLASSES)
    [block] = blocks("Hi-Mapper: class folders, from trained features")
    runner = run(block, tmp_path / "data", tmp_path)
    assert runner.model.backbone.trunk.conv_stem.weight.requires_grad is False
    assert runner.message_hub.get_scalar("val/top1").current() >= 0
    assert runner.val_dataloader.dataset.metainfo["classes"] == CLASSES


@pytest.mark.slow
def test_retrieval_with_and_without_a_hierarchy(tmp_path):
    root = make_images(tmp_path / "data", 8, CLASSES)
    for name in CLASSES:  # training never sees the classes of the test
        (root / "val" / name).rename(root / "val" / f"wild {name}")
    [block] = blocks("Retrieval: class folders")
    several = {"train_dataloader.batch_size": 8}
    plain = run(block, root, tmp_path, **several)
    assert 0 <= plain.message_hub.get_scalar("val/recall@1").current() <= 100
    assert plain.val_dataloader.dataset.metainfo["classes"][0] == "wild cat"
    tree = {name: ["tame"] for name in CLASSES} | {f"wild {name}": ["wild"] for name in CLASSES}
    (root / "tree.json").write_text(json.dumps(tree))
    [ancestors] = re.findall(r"`(every = dict\(.*?\))`", SECTIONS["A hierarchy of your own"])
    block = re.sub(r"^every = .*$", ancestors, block, flags=re.M)
    runner = run(block, root, tmp_path, **several)
    assert runner.val_dataloader.dataset.metainfo["ancestors"][0] == ("wild",)


def test_several_labels(tmp_path):
    data = make_images(tmp_path / "data", 2, CLASSES)
    for split in ("train", "val"):
        rows = [
            f"{path.relative_to(data)},sheep;{path.parent.name}"
            for path in sorted(data.glob(f"{split}/*/*"))
        ]
        (data / f"{split}.csv").write_text("\n".join(["image,labels", *rows]))
    [block] = blocks("Classification: several labels an image")
    runner = run(block, data, tmp_path)
    assert 0 < runner.message_hub.get_scalar("val/mAP").current() <= 100
    assert runner.val_dataloader.dataset.metainfo["classes"] == CLASSES
    assert 0 < runner.message_hub.get_info("baseline")["mAP"] <= 100
    assert [path.name for path in (tmp_path / "work").glob("best_*")] == ["best_mAP_epoch_1.pth"]


def test_clip_on_class_folders(tmp_path, monkeypatch):
    make_images(tmp_path / "data/mine", 2, CLASSES)
    (tmp_path / "data/mine/val").rename(tmp_path / "data/mine/test")
    (tmp_path / "data/mine/train/cat/0.png").unlink()
    monkeypatch.chdir(tmp_path)
    [block] = blocks("CLIP: class folders, few images each")
    block = block.replace("images=64", 'images=64, balanced=True, class_weights="balanced"')
    (tmp_path / "mine.py").write_text(block)
    config = load_config("mine.py")
    config.model.clip = dict(name="emoji-t8")
    config.model.host.depth = 2
    for loader in (config.train_dataloader, config.test_dataloader):
        loader.dataset.size = 64
    config.train_dataloader.dataset.shots = 2
    config.train_dataloader.batch_size = 4
    config.train_cfg.max_epochs = 1
    runner = train(config, tmp_path / "work")
    assert runner.iter == 1
    assert runner.message_hub.get_scalar("train/loss").current() > 0  # seven images, four a batch
    assert runner.model.class_weights().tolist() == pytest.approx([7 / 4, 7 / 8, 7 / 8, 7 / 8])
    assert type(runner.train_dataloader.sampler).__name__ == "BalancedSampler"


@pytest.mark.slow
@pytest.mark.parametrize("number,other", [(0, None), (1, None), (1, "fcos_hcformer.py")])
def test_boxes_alone(tmp_path, number, other):
    block = blocks("Boxes: COCO's JSON")[number]
    block = block.replace("retinanet_hcformer.py", other) if other else block
    runner = run(block, coco(tmp_path / "data"), tmp_path, **(small("one") if number else {}))
    assert runner.message_hub.get_scalar("val/coco/bbox_mAP").current() >= 0
    [rate, *_] = runner.optim_wrapper.get_lr()["lr"]
    assert rate == pytest.approx(1e-4 if number else 1.5e-3), (
        "the warm-up ends within the first epoch, however few images there are"
    )


@pytest.mark.slow
def test_boxes_of_voc(tmp_path):
    runner = run(*blocks("Boxes: VOC's XML"), voc(tmp_path / "data"), tmp_path)
    assert runner.message_hub.get_scalar("val/coco/bbox_mAP").current() >= 0
    assert len(runner.train_dataloader.dataset) == 4
    assert len(runner.train_dataloader.dataset[0]["data_samples"].gt_instances)


@pytest.mark.slow
def test_boxes_and_masks(tmp_path):
    runner = run(*blocks("Boxes and masks"), coco(tmp_path / "data", masks=True), tmp_path)
    assert runner.message_hub.get_scalar("val/coco/segm_mAP").current() >= 0


@pytest.mark.parametrize("number", [0, 1])
def test_semantic_segmentation(tmp_path, number):
    changes = {"model.data_preprocessor.size": (64, 64), "default_hooks.checkpoint.interval": 1}
    changes |= small("segmenter") if number else {}
    block = blocks("Semantic segmentation")[number]
    runner = run(block, make_folder(tmp_path / "data"), tmp_path, **changes)
    assert 0 <= runner.message_hub.get_scalar("val/mIoU").current() <= 100


@pytest.mark.slow
def test_open_vocabulary_segmentation(tmp_path):
    changes = {f"model.{key}": value for key, value in SMALL.items()}
    changes["model.clip"] = dict(_delete_=True, name="emoji-t8")
    runner = run(
        *blocks("Open-vocabulary segmentation"), make_folder(tmp_path / "data"), tmp_path, **changes
    )
    assert runner.model.train_classes == ("cat", "dog", "grass")


# What can be wrong with the data


def test_a_correct_annotation_without_masks_is_not_blamed(tmp_path):
    [block] = blocks("Boxes and masks")
    with pytest.raises(
        HypvisionError, match=r"boxes without masks.*with_mask=True.*Faster R-CNN.*own-data\.md"
    ):
        run(block, coco(tmp_path / "data"), tmp_path)


def test_nothing_detected_is_a_precision_of_zero(tmp_path, caplog):
    import hypvision.openmmlab.datasets.detection  # noqa: F401 - reads annotation files in the metric, too
    from hypvision.openmmlab.coco_metric import CheckedCocoMetric

    coco(tmp_path)
    metric = CheckedCocoMetric(str(tmp_path / "annotations/val.json"))
    metric.dataset_meta = dict(classes=CLASSES)
    nothing = dict(img_id=0, bboxes=np.zeros((0, 4)), scores=np.zeros(0), labels=np.zeros(0, int))
    assert metric.compute_metrics([({}, nothing)])["bbox_mAP"] == 0
    said = f"Nothing was detected in the 1 images of '{tmp_path}/annotations/val.json'"
    assert said in caplog.text
    assert "whole dataset is empty" not in caplog.text


def test_nothing_detected_names_the_data(caplog):
    """YOLO's data have no file of annotations; the one that the metric writes has a random name."""
    import hypvision.openmmlab.datasets.detection  # noqa: F401 - reads annotation files in the metric, too
    from hypvision.openmmlab.coco_metric import CheckedCocoMetric

    metric = CheckedCocoMetric(metric="bbox")
    metric.dataset_meta = dict(classes=CLASSES)
    found = dict(bboxes=torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0).long())
    truth = [dict(bbox=[1, 1, 5, 5], bbox_label=0, ignore_flag=0)]
    about = dict(img_id=0, img_path="mine/val/images/0.jpg", ori_shape=(8, 8))
    metric.process({}, [dict(about, pred_instances=found, instances=truth)])
    assert metric.compute_metrics(metric.results)["bbox_mAP"] == 0
    assert "Nothing was detected in the 1 images of 'mine/val/images'" in caplog.text


def test_objects_of_no_class_are_named(tmp_path):
    [block] = blocks("Boxes: VOC's XML")
    with pytest.raises(
        HypvisionError,
        match=r"\.xml' has an object 'cats', which is not a class.*mean cat.*ignored",
    ):
        run(block, voc(tmp_path / "data", other="cats"), tmp_path)


def test_evaluators_are_looked_at_before_the_training(tmp_path):
    block = blocks("Boxes: COCO's JSON")[0] + 'val_evaluator = dict(ann_file="elsewhere.json")\n'
    with pytest.raises(
        HypvisionError,
        match=r"CocoMetric of val_evaluator reads 'elsewhere\.json'.*The val data have",
    ):
        run(block, coco(tmp_path / "data"), tmp_path, **small("two"))


# data_root


def test_data_root_of_a_config_moves_what_its_bases_have(tmp_path):
    base = write_config(tmp_path / "base.py", "data/base")
    child = tmp_path / "child.py"
    child.write_text(f'_base_ = ["{base}"]\ndata_root = "data/base/mine"\n')
    config = load_config(child)
    assert config.train_dataloader.dataset.root == "data/base/mine/train"
    child.write_text(
        f'_base_ = ["{base}"]\ndata_root = "mine"\nval_dataloader = '
        'dict(dataset=dict(root="mine/x"))\n'
    )
    config = load_config(child)
    assert config.val_dataloader.dataset.root == "mine/x"
    assert config.train_dataloader.dataset.root == "mine/train"
    assert load_config(child, {"data_root": "new"}).test_dataloader.dataset.root == "new/val"


def test_a_base_that_does_not_ship_is_told(tmp_path):
    (tmp_path / "mine.py").write_text('_base_ = ["hypvision::_base_/nothing.py"]')
    with pytest.raises(HypvisionError, match="_base_ that does not exist"):
        load_config(tmp_path / "mine.py")
