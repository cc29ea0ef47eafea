# HELM's recipe: 2.1M tokens a step, 2,400 steps, warm-up over 3 % of them, then a cosine to a tenth
# of the rate. A step is 64 iterations (``accumulative_counts``), and everything below counts
# iterations.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=153600, val_interval=6400)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    dtype="bfloat16",
    constructor="LanguageParamGroups",
    optimizer=dict(type="RiemannianAdamW", lr=4e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=1.0),
    accumulative_counts=64,
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=4608),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.1, by_epoch=False, begin=4608, end=153600),
]
