# Fine-tuning for 50 epochs: AdamW, cosine, total batch 1024; what is new in the model learns ten
# times faster.
train_cfg = dict(by_epoch=True, max_epochs=50, val_interval=1)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    constructor="TimmParamGroups",
    paramwise_cfg=dict(lr_mult={"backbone.mapper": 10.0}),
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=1e-4),
)
auto_scale_lr = dict(base_batch_size=1024, enable=True)
param_scheduler = [
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0,
        end=50,
        convert_to_iter_based=True,
    ),
]
