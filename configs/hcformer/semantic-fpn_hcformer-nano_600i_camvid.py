# Semantic FPN with HCFormer-nano on CamVid from scratch: 600 iterations, what one CPU core does in
# nine minutes.
_base_ = [
    "../_base_/models/semantic_fpn_hcformer.py",
    "../_base_/datasets/camvid.py",
    "../_base_/schedules/ade20k_adamw_80k.py",
    "../_base_/seg_runtime.py",
]
model = dict(
    data_preprocessor=dict(size=(192, 192)),
    backbone=dict(model_name="hcformer_nano", img_size=192, layer_scale=0.1),
    neck=dict(in_channels=[32, 64, 196, 224], out_channels=96),
    decode_head=dict(in_channels=[96, 96, 96, 96], channels=96, num_classes=11),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(192, 192), cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(num_workers=1, dataset=dict(pipeline=train_pipeline))
train_cfg = dict(max_iters=600, val_interval=600)
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(lr=1e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=100, by_epoch=False),
    dict(type="PolyLR", power=0.9, eta_min=1e-5, begin=100, end=600, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=200))
