"""Images without boxes in the training of a detector: used by one option, and with losses that are
numbers."""

import json
import math

import pytest
from helpers.cases import each

pytest.importorskip("mmdet")
from helpers.engine import tiny
from helpers.shapes.export import export
from helpers.task_models import CLASSES, HEADS, SIZE, detector
from mmdet.registry import DATASETS

import hypvision.openmmlab  # noqa: F401 - mmcv's operations, before mmdet
from hypvision.engine.config import load_config
from hypvision.engine.run import train


def gradients(name, boxes):
    """The loss of two images with so many boxes, and the gradient of each parameter."""
    from mmdet.testing import demo_mm_inputs

    model = detector(name).train()
    options = dict(num_classes=CLASSES, with_mask=name == "mask_rcnn", num_items=[boxes, boxes])
    data = model.data_preprocessor(demo_mm_inputs(2, [[3, *SIZE]] * 2, **options), True)
    loss, _ = model.parse_losses(model(**data, mode="loss"))
    loss.backward()
    return loss, {
        key: value.grad for key, value in model.named_parameters() if value.grad is not None
    }


# Mask R-CNN's losses contain Faster R-CNN's
@each("name", [name for name in HEADS if name != "faster_rcnn"])
def test_losses_of_a_batch_without_boxes_are_numbers(name):
    loss, found = gradients(name, 0)
    assert loss > 0 and loss.isfinite() and all(grad.isfinite().all() for grad in found.values())
    assert any(grad.any() for key, grad in found.items() if "bbox_head" in key), (
        "what it finds there is unlearned"
    )
    usual = gradients(name, 3)[1]
    assert found.keys() == usual.keys(), "a process with such a batch waits for no other"


def test_one_option_takes_them(tmp_path):
    data = tmp_path / "data"
    export(data, "coco", 4, 2, 64, level="kind")
    path = data / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    empty = {image["id"] for image in content["images"][:2]}
    content["annotations"] = [
        item for item in content["annotations"] if item["image_id"] not in empty
    ]
    path.write_text(json.dumps(content))
    config, option = (
        tiny("detection", data, tmp_path / "tiny.py"),
        "train_dataloader.dataset.filter_cfg.filter_empty_gt",
    )
    runner = train(config, tmp_path / "work", cfg_options={option: False})
    assert len(runner.train_dataloader.dataset) == 4 and runner.iter == 2
    assert math.isfinite(runner.message_hub.get_scalar("train/loss").current())
    assert len(DATASETS.build(load_config(config).train_dataloader.dataset)) == 2
