# HyCoCLIP: a box of each image with its words, ViT-S/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="hycoclip-vit-s-16"))
train_dataloader = dict(dataset=dict(boxes=True))
