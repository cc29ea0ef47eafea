# Semantic FPN on a slim HCFormer, drawn scenes of 96 x 96 pixels from random weights.
_base_ = [
    "hypvision::_base_/models/semantic_fpn_hcformer.py",
    "hypvision::_base_/schedules/ade20k_adamw_80k.py",
    "hypvision::_base_/seg_runtime.py",
]
data_root = "data/shapes"
data = dict(
    type="BaseSegDataset",
    metainfo=dict(classes=("background", "branched", "composite", "polygon", "round")),
    img_suffix=".jpg",
    seg_map_suffix=".png",
    reduce_zero_label=True,
)
size = (96, 96)
model = dict(
    data_preprocessor=dict(size=size),
    backbone=dict(
        model_name="hcformer_nano",
        img_size=64,
        layers=(1, 1, 2, 1),
        mlp_ratios=(4, 4, 4, 4),
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        pad="minimal",
        stem="conv",
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        layer_scale=0.3,
        drop_path_rate=0.0,
    ),
    neck=dict(in_channels=[32, 64, 196, 224], out_channels=64),
    decode_head=dict(in_channels=[64, 64, 64, 64], channels=64, num_classes=5, dropout_ratio=0.0),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        data,
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        data,
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
train_cfg = dict(max_iters=350, val_interval=350)
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(lr=2e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=50, by_epoch=False),
    dict(type="PolyLR", power=0.9, eta_min=1e-5, begin=50, end=350, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=175))
