# MERU: the same network and data on a hyperboloid, with entailment of images by their texts.
_base_ = ["./clip-emoji_500i_scenes.py"]
model = dict(clip=dict(geometry="lorentz"))
optim_wrapper = dict(optimizer=dict(lr=4e-3))
