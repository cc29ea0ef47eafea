# The CLIP baseline of HyCoCLIP, ViT-S/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="clip-vit-s-16"))
