# 80k steps, 4 images in all; CLIP's blocks at 0.075 times the rate of the head; no warm-up.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=80000)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-4, betas=(0.9, 0.999), weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys={"clip.": dict(lr_mult=0.075)}, norm_decay_mult=0.0),
    clip_grad=dict(max_norm=0.01),
)
param_scheduler = [
    dict(type="CosineAnnealingLR", T_max=80000, eta_min=0.0, begin=0, end=80000, by_epoch=False)
]
auto_scale_lr = dict(base_batch_size=4, enable=False)
