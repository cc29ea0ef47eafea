# HyperCLIP on OpenAI's ViT-L/14@336: crops of 384 pixels are resized to 336, a grid of 24 x 24. All
# 24 blocks are adapted (the official code counts to 12); 13 M parameters.
_base_ = ["./hyperclip_vitb16.py"]
model = dict(clip=dict(name="ViT-L-14-336"), resolution=336)
