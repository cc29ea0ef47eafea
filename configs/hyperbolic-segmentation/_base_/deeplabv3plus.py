# DeepLabV3+ on ResNet-101 v2 with hyperbolic pixels, the published recipe; a row of recipes.csv
# says data, curvature, rate and length. Starting weights: model.backbone.pretrained=True, timm's of
# ImageNet, which learned on pixels from -1 to 1.
_base_ = ["../../_base_/seg_runtime.py"]
custom_imports = dict(
    imports=["hypvision.openmmlab", "hypvision.tasks", "hypvision.openmmlab.hyperbolic_head"]
)
model = dict(
    type="HyperbolicSegmentor",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[127.5, 127.5, 127.5],
        std=[127.5, 127.5, 127.5],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(513, 513),
    ),
    backbone=dict(
        type="TimmBackbone", model_name="resnetv2_101", out_indices=(1, 4), output_stride=16
    ),
    decode_head=dict(
        type="HyperbolicASPPHead",
        in_channels=2048,
        in_index=1,
        channels=256,
        dilations=(1, 6, 12, 18),
        c1_in_channels=256,
        c1_channels=48,
        dropout_ratio=0.1,
        norm_cfg=dict(type="BN", requires_grad=True),
        align_corners=False,
        dim=256,
        loss_at="feature",
        loss_decode=dict(type="CrossEntropyLoss", avg_non_ignore=True),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
train_dataloader = dict(batch_size=5, sampler=dict(type="DefaultSampler", shuffle=True))
train_cfg = dict(type="EpochBasedTrainLoop", val_interval=5)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="RiemannianSGD", momentum=0.9, weight_decay=1e-4),
    paramwise_cfg=dict(lr_mult={"backbone": 0.1, "backbone.*norm*": 0.0}),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.01, begin=0, end=2500, by_epoch=False),
    dict(type="PolyLR", power=0.9, eta_min=0.0, begin=0, convert_to_iter_based=True),
]
default_hooks = dict(
    logger=dict(log_metric_by_epoch=True), checkpoint=dict(by_epoch=True, interval=5)
)
log_processor = dict(by_epoch=True)
