# A small CLIP from scratch on drawn shapes and their captions: 1100 steps of 128 images of 64 x 64
# pixels, what one CPU core does in 20 minutes with --amp (bfloat16).
_base_ = ["../_base_/default_runtime.py"]
custom_imports = dict(imports=["hypvision.tasks", "hypvision.tasks.contrastive"])
model = dict(type="CLIPContrast", clip=dict(name="shapes-s8"))
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="ShapeCaptions", split="train", length=200_000),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="ShapeCaptions", split="val", length=1000, scenes=False),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="ZeroShotAccuracy")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=1100, val_interval=275)
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(type="TimmMuon", lr=4e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=80, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=1020, eta_min=4e-5, begin=80, end=1100, by_epoch=False),
]
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=275, max_keep_ckpts=2), logger=dict(interval=20)
)
log_processor = dict(by_epoch=False)
