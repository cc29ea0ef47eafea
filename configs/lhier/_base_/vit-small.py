# ViT-S of ImageNet-21k, whose pixels have another mean and deviation.
model = dict(
    backbone=dict(model_name="vit_small_patch16_224.augreg_in21k"),
    neck=dict(dim=384),
    frozen=("patch_embed.*",),
)
pixels = dict(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
train_dataloader = dict(dataset=dict(transform=pixels))
val_dataloader = dict(dataset=dict(transform=pixels))
test_dataloader = val_dataloader
del pixels
optim_wrapper = dict(optimizer=dict(lr=1e-5, weight_decay=0.01))
