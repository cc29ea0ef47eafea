# MERU's training on RedCaps: 120,000 steps of 2,048 pairs. Half of the captions begin with the
# words of the subreddit.
_base_ = ["./pretraining.py"]
train_dataloader = dict(batch_size=256, dataset=dict(shards="data/redcaps/shards", subreddits=0.5))
train_cfg = dict(type="IterBasedTrainLoop", max_iters=120_000, val_interval=10_000)
param_scheduler = [
    dict(
        type="LinearLR", start_factor=1e-8, begin=0, end=4001, by_epoch=False
    ),  # from 0, which mmengine divides by
    dict(
        type="CosineAnnealingLR", eta_min=0.0, begin=4000, end=120_000, by_epoch=False
    ),  # cos^2 of half the angle
]
