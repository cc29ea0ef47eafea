# Ablation: distances in flat space.
_base_ = ["./himapper-efficientnet-lite0_10e_grocery.py"]
model = dict(backbone=dict(geometry="euclidean"))
