# The CLIP baseline of MERU, ViT-S/16 on RedCaps.
_base_ = ["./_base_/redcaps.py"]
model = dict(clip=dict(name="clip-vit-s-16"))
