# AdamW for 30 epochs at batch 128: 2 of warm-up, then cosine.
train_cfg = dict(by_epoch=True, max_epochs=30, val_interval=1)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
auto_scale_lr = dict(base_batch_size=128, enable=True)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=2,
        end=30,
        convert_to_iter_based=True,
    ),
]
