# Ablation: a tree of vectors, without variances.
_base_ = ["./himapper-vit-micro_150i_cifar10.py"]
model = dict(backbone=dict(tree="deterministic"))
