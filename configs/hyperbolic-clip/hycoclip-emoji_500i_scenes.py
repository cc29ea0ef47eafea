# HyCoCLIP: MERU with a box of each image and its words.
_base_ = ["./clip-emoji_500i_scenes.py"]
train_dataloader = dict(dataset=dict(boxes=True))
model = dict(clip=dict(name="hycoclip-emoji-s16", geometry="lorentz"))
