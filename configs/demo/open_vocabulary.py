# The fourth part of `make demo`: HyperCLIP on the small CLIP that ships; cross, house, pentagon and ring have no label
# in training. A short form of configs/hyperclip/shapes_hyperclip_450i.py, whose README has the table of all rows.
_base_ = ["../hyperclip/shapes_hyperclip_450i.py"]
train_dataloader = dict(dataset=dict(length=800))
val_dataloader = dict(dataset=dict(length=100))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=120, val_interval=120)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=10, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=110, eta_min=0.0, begin=10, end=120, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=60))
