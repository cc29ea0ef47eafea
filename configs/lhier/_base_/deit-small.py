# DeiT-S, distilled.
model = dict(
    backbone=dict(model_name="deit_small_distilled_patch16_224.fb_in1k"),
    neck=dict(dim=384),
    frozen=("patch_embed.*",),
)
optim_wrapper = dict(optimizer=dict(lr=1e-5, weight_decay=0.01))
