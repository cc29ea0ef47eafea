# HyCoCLIP's training on GRIT: 500,000 steps of 768 pairs.
_base_ = ["./pretraining.py"]
train_dataloader = dict(batch_size=96, dataset=dict(shards="data/grit/shards"))
train_cfg = dict(type="IterBasedTrainLoop", max_iters=500_000, val_interval=20_000)
param_scheduler = [
    dict(
        type="LinearLR", start_factor=1e-8, begin=0, end=4001, by_epoch=False
    ),  # from 0, which mmengine divides by
    dict(
        type="CosineAnnealingLR", eta_min=0.0, begin=4000, end=500_000, by_epoch=False
    ),  # cos^2 of half the angle
]
