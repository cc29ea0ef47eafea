# As for the small models, with 256 iterations a step.
_base_ = "./helm.py"
train_cfg = dict(max_iters=614400, val_interval=25600)
optim_wrapper = dict(accumulative_counts=256)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=18432),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.1, by_epoch=False, begin=18432, end=614400),
]
