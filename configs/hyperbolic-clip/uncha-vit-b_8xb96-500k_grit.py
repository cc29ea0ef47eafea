# UNCHA: up to five boxes of each image with their words, ViT-B/16 on GRIT. The colour jitter of its
# official config is of a kind that the official code does not apply.
_base_ = ["./_base_/grit.py"]
model = dict(clip=dict(name="uncha-vit-b-16"))
train_dataloader = dict(dataset=dict(boxes=5, transform=dict(scale=(0.8, 1.0), grayscale_prob=0.2)))
