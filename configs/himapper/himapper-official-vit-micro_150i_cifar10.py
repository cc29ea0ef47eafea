# Ablation: the numerics of the released code.
_base_ = ["./himapper-vit-micro_150i_cifar10.py"]
model = dict(backbone=dict(preset="official"))
