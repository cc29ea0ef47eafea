# HELM's recipe: 2.1M tokens a step, warm-up over 3 % of the steps, then a cosine to a tenth of the rate.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=2400, val_interval=100)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    dtype="bfloat16",
    constructor="LanguageParamGroups",
    optimizer=dict(type="RiemannianAdamW", lr=4e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=1.0),
    accumulative_counts=64,
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=72),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.1, by_epoch=False, begin=72, end=2400),
]
