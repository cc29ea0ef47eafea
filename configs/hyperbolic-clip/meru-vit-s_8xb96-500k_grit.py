# MERU, ViT-S/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="meru-vit-s-16"))
