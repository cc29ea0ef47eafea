# ViT-S from weights that DINO learned without labels.
model = dict(
    backbone=dict(model_name="vit_small_patch16_224.dino"),
    neck=dict(dim=384),
    frozen=("patch_embed.*",),
)
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=0.01))
