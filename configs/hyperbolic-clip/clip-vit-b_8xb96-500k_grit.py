# The CLIP baseline of HyCoCLIP, ViT-B/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="clip-vit-b-16"))
