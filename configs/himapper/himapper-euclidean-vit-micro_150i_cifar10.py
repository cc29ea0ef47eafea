# Ablation: distances in flat space.
_base_ = ["./himapper-vit-micro_150i_cifar10.py"]
model = dict(backbone=dict(geometry="euclidean"))
