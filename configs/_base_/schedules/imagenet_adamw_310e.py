# AdamW for 310 epochs: 5 of warm-up, cosine to epoch 300, 10 of cool-down at the lowest rate.
# lr is for a total batch of 1024 and is scaled linearly to the batch of the run.
train_cfg = dict(by_epoch=True, max_epochs=310, val_interval=1)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
)
auto_scale_lr = dict(base_batch_size=1024, enable=True)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    # mmengine counts from `begin`: 295 epochs of cosine, after which the rate stays. timm counts
    # 300 from epoch 0; its rates differ from these by at most 0.016 lr.
    dict(
        type="CosineAnnealingLR",
        eta_min=1e-6,
        by_epoch=True,
        begin=5,
        end=300,
        convert_to_iter_based=True,
    ),
]
