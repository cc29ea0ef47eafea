# AdamW for 80k iterations at a total batch of 16, polynomial decay of power 0.9. Norms and biases
# are decayed too.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=80000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="DefaultOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=2e-4, weight_decay=1e-4),
)
auto_scale_lr = dict(base_batch_size=16, enable=False)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=0.0, begin=0, end=80000, by_epoch=False)]
