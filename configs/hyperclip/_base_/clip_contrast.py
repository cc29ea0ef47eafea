# A small CLIP on crops of labelled scenes with captions of what they show, 128 at a time; a config
# sets the CLIP, its classes, the data and the length.
_base_ = ["../../_base_/default_runtime.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "hypvision.data.tag_captions"]
)
model = dict(type="CLIPContrast")
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    pin_memory=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    pin_memory=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="ZeroShotAccuracy")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop")
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(type="TimmMuon", lr=4e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
default_hooks = dict(checkpoint=dict(by_epoch=False, max_keep_ckpts=2), logger=dict(interval=20))
log_processor = dict(by_epoch=False)
