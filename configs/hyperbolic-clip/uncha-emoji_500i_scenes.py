# UNCHA: HyCoCLIP with both boxes of a scene, three scales and uncertainties.
_base_ = ["./hycoclip-emoji_500i_scenes.py"]
train_dataloader = dict(dataset=dict(boxes=2))
model = dict(clip=dict(name="uncha-emoji-s16"))
