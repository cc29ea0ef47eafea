# Ablation: HyCoCLIP with the curvature that it starts from.
_base_ = ["./hycoclip-emoji_2000i_scenes.py"]
model = dict(clip=dict(learn_curvature=False))
