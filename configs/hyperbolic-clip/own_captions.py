# Your own images with captions: data/own/{train,val}/images and captions.csv (docs/data.md), from
# the published MERU of size S. Lines of your own that start from this file are shown in
# docs/hyperbolic-clip.md.
_base_ = ["./_base_/pretraining.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "hypvision.data.caption_folder"]
)
data_root = "data/own"
model = dict(clip=dict(name="meru-vit-s-16", pretrained="redcaps"))
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    sampler=dict(_delete_=True, type="InfiniteSampler", shuffle=True),
    dataset=dict(
        _delete_=True,
        type="CaptionFolder",
        root=data_root + "/train",
        transform=dict(
            input_size=224, is_training=True, scale=(0.5, 1.0), interpolation="bicubic", hflip=0.0,
            color_jitter=None, normalize=False,
        ),
    ),
)  # fmt: skip
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    dataset=dict(
        _delete_=True,
        type="CaptionFolder",
        root=data_root + "/val",
        transform=dict(
            input_size=224,
            crop_mode="squash",
            crop_pct=1.0,
            interpolation="bicubic",
            normalize=False,
        ),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type="ImageTextRetrieval")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=2000, val_interval=500)
optim_wrapper = dict(
    optimizer=dict(lr=1e-5),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys=dict(in_proj_bias=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, begin=0, end=100, by_epoch=False),
    dict(type="CosineAnnealingLR", eta_min=0.0, begin=100, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=500, save_best="text_to_image_r1"))
