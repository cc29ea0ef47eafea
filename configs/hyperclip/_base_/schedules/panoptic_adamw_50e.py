# 50 epochs at a total batch of 16, steps after epochs 40 and 47; CLIP's blocks at 0.075 times the
# rate.
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=50, val_interval=5)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={
            "clip.": dict(lr_mult=0.075, decay_mult=0.0),
            "query_embed": dict(decay_mult=0.0),
        },
        norm_decay_mult=0.0,
    ),
    clip_grad=dict(max_norm=0.1),
)
param_scheduler = [
    dict(type="MultiStepLR", begin=0, end=50, by_epoch=True, milestones=[40, 47], gamma=0.1)
]
auto_scale_lr = dict(base_batch_size=16, enable=False)
