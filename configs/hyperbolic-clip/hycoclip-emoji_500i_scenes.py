# HyCoCLIP: MERU with a box of each image and its words.
_base_ = ["./meru-emoji_500i_scenes.py"]
train_dataloader = dict(dataset=dict(boxes=True))
model = dict(clip=dict(name="hycoclip-emoji-s16"))
optim_wrapper = dict(optimizer=dict(lr=2e-3))
