# What the published trainings of MERU, HyCoCLIP and their CLIP baselines share: a ViT and a text
# tower from scratch on shards of images with captions, AdamW, and zero-shot accuracy on ImageNet as
# the test.
_base_ = ["../../_base_/default_runtime.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "hypvision.data.shards"]
)
data_root = "data/imagenet"
model = dict(type="CLIPContrast", classes="imagenet", templates="photo", entail=0.2)
train_dataloader = dict(
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    sampler=None,
    collate_fn=dict(type="default_collate"),
    dataset=dict(
        type="CaptionShards",
        shuffle=4000,
        transform=dict(
            input_size=224, is_training=True, scale=(0.5, 1.0), interpolation="bicubic", hflip=0.0,
            color_jitter=None, normalize=False,
        ),
    ),
)  # fmt: skip
val_dataloader = dict(
    batch_size=256,
    num_workers=8,
    pin_memory=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/val",
        transform=dict(
            input_size=224, is_training=False, crop_pct=1.0, interpolation="bicubic",
            normalize=False
        ),
    ),
)  # fmt: skip
test_dataloader = val_dataloader
val_evaluator = dict(type="ZeroShotAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
optim_wrapper = dict(
    optimizer=dict(type="AdamW", lr=5e-4, betas=(0.9, 0.98), weight_decay=0.2),
    # Norms and biases decay, too: in the official code the default replaces the 0.0 that its
    # configs give for them.
    paramwise_cfg=dict(
        custom_keys={
            name: dict(decay_mult=0.0)
            for name in ("logit_scale", "curv", "visual_alpha", "textual_alpha")
        },
    ),
)
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=5000, max_keep_ckpts=2),
    logger=dict(log_metric_by_epoch=False),
)
log_processor = dict(by_epoch=False)
