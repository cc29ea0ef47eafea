"""Images without boxes in the training of a detector: used by one option, and with losses that are numbers."""

import json

import pytest
import torch

pytest.importorskip("mmdet")
from helpers.engine import tiny
from helpers.task_models import CLASSES, HEADS, SIZE, detector

import hypvision.openmmlab  # noqa: F401 - mmcv's operations, before mmdet
from hypvision.data.export import export
from hypvision.engine.run import train


@pytest.mark.parametrize("name", HEADS)
def test_losses_of_a_batch_without_boxes_are_numbers(name):
    from mmdet.testing import demo_mm_inputs

    model = detector(name).train()
    options = dict(num_classes=CLASSES, with_mask=name == "mask_rcnn")
    data = demo_mm_inputs(2, [[3, *SIZE]] * 2, num_items=[0, 0], **options)
    losses, _ = model.parse_losses(model(**model.data_preprocessor(data, True), mode="loss"))
    assert 0 < losses and losses.isfinite()
    losses.backward()  # of every parameter, as several processes need it
    gradients = {key: value.grad for key, value in model.named_parameters() if value.requires_grad}
    assert all(grad is not None and grad.isfinite().all() for grad in gradients.values()), gradients
    confident = [grad for key, grad in gradients.items() if "bbox_head" in key or "retina_cls" in key]
    assert any(grad.any() for grad in confident), "what is found in the background is unlearned"


@pytest.mark.parametrize("background", [False, True])
def test_one_option_takes_them(tmp_path, background):
    data = tmp_path / "data"
    export(data, "coco", 4, 2, 64, level="shape")
    path = data / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    empty = {image["id"] for image in content["images"][:2]}
    content["annotations"] = [item for item in content["annotations"] if item["image_id"] not in empty]
    path.write_text(json.dumps(content))
    options = {"train_dataloader.dataset.filter_cfg.filter_empty_gt": False} if background else {}
    options["train_dataloader.batch_sampler"] = None
    runner = train(tiny("detection", data, tmp_path / "tiny.py"), tmp_path / "work", cfg_options=options)
    assert len(runner.train_dataloader.dataset) == (4 if background else 2)
    assert torch.isfinite(torch.tensor(runner.message_hub.get_scalar("train/loss").current()))
