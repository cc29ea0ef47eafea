_base_ = [
    "../_base_/datasets/sop.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/hier_adamw.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="deit_small_distilled_patch16_224.fb_in1k"),
    neck=dict(dim=384),
    num_classes=11318,
    frozen=("patch_embed.*",),
)
optim_wrapper = dict(
    optimizer=dict(lr=1e-05, weight_decay=0.0001), paramwise_cfg=dict(neck_lr_scale=100)
)
train_cfg = dict(max_epochs=150)
custom_hooks = [dict(type="BackboneWarmUpHook", epochs=5)]
