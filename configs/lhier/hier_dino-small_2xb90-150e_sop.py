# As hier_deit-small_2xb90-150e_sop.py, from weights that DINO learned without labels.
_base_ = ["./hier_deit-small_2xb90-150e_sop.py"]
model = dict(backbone=dict(model_name="vit_small_patch16_224.dino"))
optim_wrapper = dict(optimizer=dict(lr=5e-06))
