# Ablation: HyCoCLIP with the curvature that it starts from.
_base_ = ["./hycoclip-emoji_500i_scenes.py"]
model = dict(clip=dict(learn_curvature=False))
