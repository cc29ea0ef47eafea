_base_ = [
    "../_base_/datasets/cub200.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/hier_adamw.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="vit_small_patch16_224.dino"),
    neck=dict(dim=384),
    num_classes=100,
    frozen=("patch_embed.*",),
)
optim_wrapper = dict(optimizer=dict(lr=5e-06, weight_decay=0.01))
