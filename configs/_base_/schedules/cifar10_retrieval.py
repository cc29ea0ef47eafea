# RiemannianAdamW from random weights: 8 epochs of 18,000 images, one of warm-up, then cosine.
train_cfg = dict(by_epoch=True, max_epochs=8, val_interval=2)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="MetricLearningParamGroups",
    optimizer=dict(type="RiemannianAdamW", lr=2e-3, weight_decay=1e-2),
    paramwise_cfg=dict(
        neck_lr_scale=1.0, hier_lr_scale=10.0, class_lr_scale=10.0, curvature_lr=1e-3
    ),
    clip_grad=dict(type="value", clip_value=10.0),
)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=1,
        end=8,
        convert_to_iter_based=True,
    ),
]
