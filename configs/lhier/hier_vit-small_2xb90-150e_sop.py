_base_ = [
    "../_base_/datasets/sop.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/hier_adamw.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="vit_small_patch16_224.augreg_in21k"),
    neck=dict(dim=384),
    num_classes=11318,
    frozen=("patch_embed.*",),
)
train_dataloader = dict(dataset=dict(transform=dict(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))))
val_dataloader = dict(dataset=dict(transform=dict(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))))
test_dataloader = val_dataloader
optim_wrapper = dict(
    optimizer=dict(lr=1e-05, weight_decay=0.0001), paramwise_cfg=dict(neck_lr_scale=100)
)
train_cfg = dict(max_epochs=150)
custom_hooks = [dict(type="BackboneWarmUpHook", epochs=5)]
