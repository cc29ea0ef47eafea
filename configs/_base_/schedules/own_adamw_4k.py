# AdamW for 4,000 iterations: 200 of warm-up, then polynomial decay. For segmenters on data of one's
# own.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=4000, val_interval=500)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="AdamW", lr=2e-4, weight_decay=0.05),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=200),
    dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False, begin=200, end=4000),
]
