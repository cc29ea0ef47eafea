# MERU, ViT-L/16 on RedCaps.
_base_ = ["./_base_/redcaps.py"]
model = dict(clip=dict(name="meru-vit-l-16"))
