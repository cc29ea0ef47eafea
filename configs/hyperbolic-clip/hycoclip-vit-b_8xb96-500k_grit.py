# HyCoCLIP: a box of each image with its words, ViT-B/16 on GRIT.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="hycoclip-vit-b-16"))
train_dataloader = dict(dataset=dict(boxes=True))
