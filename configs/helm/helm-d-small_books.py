# Novels, byte by byte: 6,000 steps of 2,048 tokens, 1.35 passes, a quarter of an hour on one core.
_base_ = ["./helm-d-tiny_books.py"]
length = 256
model = dict(n_layers=3, dim=66, inter_dim=264)
train_dataloader = dict(dataset=dict(length=length))
val_dataloader = dict(dataset=dict(length=length, limit=256))
test_dataloader = dict(dataset=dict(length=length))
train_cfg = dict(max_iters=6000, val_interval=500)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=180),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.1, by_epoch=False, begin=180, end=6000),
]
default_hooks = dict(checkpoint=dict(interval=500))
optim_wrapper = dict(optimizer=dict(lr=8e-3))
