# PHyCLIP: a box of each image with its words in a product of 64 hyperboloids, ViT-L/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="phyclip-vit-l-16"))
train_dataloader = dict(dataset=dict(boxes=True))
# Curvatures and scales of the factors decay, too: they are in lists, where the official code finds
# no name that it leaves out.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(_delete_=True, logit_scale=dict(decay_mult=0.0)))
)
