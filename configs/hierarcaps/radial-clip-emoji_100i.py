# Radial tuning of the small CLIP of emoji on chains of the training emoji (group, class, name, name
# with keywords).
_base_ = ["../_base_/default_runtime.py"]
custom_imports = dict(imports=["hypvision.tasks.radial"])
data_root = "data/emoji"
model = dict(
    type="RadialTuning",
    clip=dict(name="emoji-s16", pretrained="zoo:emoji-s16.captions"),
    loss=dict(type="RadialLoss"),
    root="text",
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="TextChains", source="emoji", root=data_root, split="train"),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="TextChains", source="emoji", root=data_root, split="val"),
)
test_dataloader = dict(val_dataloader, dataset=dict(val_dataloader["dataset"], split="test"))
val_evaluator = dict(type="ChainOrder")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=100, val_interval=100)
optim_wrapper = dict(optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.01, fused=True))
custom_hooks = [dict(type="FrozenTextsHook")]
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=2, save_best=None),
    logger=dict(interval=20),
)
log_processor = dict(by_epoch=False)
