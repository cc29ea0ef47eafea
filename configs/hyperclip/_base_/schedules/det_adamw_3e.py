# 3 epochs at a total batch of 64, 250 steps of warm-up; CLIP's blocks at 0.075 times the rate, as
# in segmentation.
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=3, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=0.1),
    paramwise_cfg=dict(
        custom_keys={"clip.": dict(lr_mult=0.075, decay_mult=0.0)}, norm_decay_mult=0.0
    ),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=250),
    dict(
        type="CosineAnnealingLR",
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=3,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(base_batch_size=64, enable=False)
