# UPerNet with transformers: AdamW for 80k iterations at a total batch of 16, 1500 of warm-up,
# linear decay.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=80000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
)
auto_scale_lr = dict(base_batch_size=16, enable=False)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", power=1.0, eta_min=0.0, begin=1500, end=80000, by_epoch=False),
]
