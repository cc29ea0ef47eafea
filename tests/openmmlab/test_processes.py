"""Detectors whose necks begin at a later level, in several processes: what nobody sees is not
trained, or is named."""

import json

import pytest
import torch
from helpers.engine import ROOT, scalars
from helpers.shapes.export import export
from mmengine.registry import MODELS, DefaultScope

import hypvision.openmmlab  # noqa: F401 - registers TimmBackbone
from hypvision.engine.config import Run, prepare
from hypvision.engine.hooks import UnusedParametersHook
from hypvision.io.errors import HypvisionError

HCFORMER = dict(
    type="TimmBackbone", model_name="hcformer_nano", img_size=64, layers=(1, 1, 1, 1),
    dims=(16, 16, 16, 16), heads=(2, 2, 2, 2), head_dim=8, mlp_ratios=(2, 2, 2, 2), pad="minimal",
    fold=(4, 2, 1, 1), prop=(2, 2, 4, 2), win=(4, 2, 1, 1),
)  # fmt: skip


def detector(kind):
    """mmdet's RetinaNet or FCOS on a small HCFormer, four classes."""
    neck = dict(
        type="FPN",
        in_channels=[16] * 4,
        out_channels=16,
        start_level=1,
        add_extra_convs="on_output",
        num_outs=5,
    )
    head = dict(num_classes=4, in_channels=16, feat_channels=16, stacked_convs=1)
    if kind == "RetinaNet":
        head.update(
            type="RetinaHead",
            anchor_generator=dict(
                type="AnchorGenerator", octave_base_scale=4, scales_per_octave=3,
                ratios=[0.5, 1.0, 2.0], strides=[8, 16, 32, 64, 128],
            ),
            bbox_coder=dict(type="DeltaXYWHBBoxCoder"),
        )  # fmt: skip
        assigner = dict(
            type="MaxIoUAssigner",
            pos_iou_thr=0.5,
            neg_iou_thr=0.4,
            min_pos_iou=0,
            ignore_iof_thr=-1,
        )
        train_cfg = dict(
            assigner=assigner, sampler=dict(type="PseudoSampler"), allowed_border=-1, pos_weight=-1
        )
    else:
        head.update(
            type="FCOSHead", strides=[8, 16, 32, 64, 128], norm_cfg=dict(type="GN", num_groups=4)
        )
        train_cfg = None
    return dict(
        type=kind,
        data_preprocessor=dict(type="DetDataPreprocessor", mean=[0, 0, 0], std=[255, 255, 255]),
        backbone=dict(HCFORMER), neck=neck, bbox_head=head, train_cfg=train_cfg,
        test_cfg=dict(nms_pre=100, score_thr=0.05, nms=dict(type="nms", iou_threshold=0.5),
        max_per_img=20),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["RetinaNet", "FCOS"])
def test_every_trainable_parameter_gets_a_gradient(tmp_path, kind):
    from mmdet.testing import demo_mm_inputs

    config = Run(dict(model=detector(kind), default_scope="mmdet"))
    config.model.backbone.out_indices = (3, 2, 1, 0)  # maps come in the network's order
    config = prepare(config, tmp_path)
    assert config.model.backbone.unused == (0,)
    with DefaultScope.overwrite_default_scope("mmdet"):
        model = MODELS.build(config.model)
        data = model.data_preprocessor(
            demo_mm_inputs(2, [[3, 64, 64], [3, 64, 64]], num_classes=4), True
        )
        losses = model(**data, mode="loss")
    sum(
        value if torch.is_tensor(value) else sum(value)
        for key, value in losses.items()
        if "loss" in key
    ).backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not unused
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and all(".feature_norms.0." in name for name in frozen)


def test_other_unused_parameters_are_named_before_the_first_step(monkeypatch):
    monkeypatch.setattr("hypvision.engine.hooks.stop.get_world_size", lambda: 2)
    inner = torch.nn.ModuleDict(dict(used=torch.nn.Linear(2, 1), unused=torch.nn.Linear(2, 1)))
    optimizer = torch.optim.SGD(inner.parameters(), lr=1.0)

    class Wrapper(torch.nn.Module):
        find_unused_parameters = False

        def __init__(self):
            super().__init__()
            self.module = inner

    class Runner:
        model = Wrapper()
        optim_wrapper = type("", (), dict(optimizer=optimizer))

    UnusedParametersHook().before_train(Runner)
    before = inner["used"].weight.clone()
    inner["used"](torch.ones(1, 2)).sum().backward()
    with pytest.raises(
        HypvisionError,
        match=r"2 parameters get no gradient.*unused.weight.*find_unused_parameters=True",
    ):
        optimizer.step()
    assert torch.equal(inner["used"].weight, before)
    optimizer.step()  # the look is taken once


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RetinaNet", "FCOS"])
def test_two_processes_train_them(tmp_path, kind):
    from engine.test_distributed import launch

    data = export(tmp_path / "coco", "coco", 8, 2, 64, level="kind")
    path = tmp_path / "config.py"
    path.write_text(
        f"_base_ = ['{ROOT}/tests/helpers/shapes/configs/detection.py']\nvis_backends = "
        "[dict(type='LocalVisBackend')]\nvisualizer = dict(vis_backends=vis_backends)\ndata_root = "
        f"'{data}/'\nmodel = dict(_delete_=True, **{json.dumps(detector(kind))})\n".replace(
            "null", "None"
        )
        + "train_dataloader = dict(batch_size=1, num_workers=0, "
        "dataset=dict(data_root=data_root))\nval_dataloader = "
        "dict(dataset=dict(data_root=data_root))\ntest_dataloader = val_dataloader\n"
        "val_evaluator = dict(metric='bbox', ann_file=data_root + "
        "'annotations/instances_val2017.json')\ntest_evaluator = val_evaluator\ntrain_cfg = "
        "dict(max_epochs=1, val_interval=1)\nparam_scheduler = []\ndefault_hooks = "
        "dict(logger=dict(interval=1))\n"
    )
    launch(path, tmp_path / "work")
    assert len(scalars(tmp_path / "work", "loss")) == 4  # eight images, two processes
