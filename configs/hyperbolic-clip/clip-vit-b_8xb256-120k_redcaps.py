# The CLIP baseline of MERU, ViT-B/16 on RedCaps.
_base_ = ["./_base_/redcaps.py"]
model = dict(clip=dict(name="clip-vit-b-16"))
