# Ablation: distances in flat space.
_base_ = ["./himapper-vit-micro_250i_cifar10.py"]
model = dict(backbone=dict(geometry="euclidean"))
