# Ablation: a tree of vectors, without variances.
_base_ = ["./himapper-efficientnet-lite0_10e_grocery.py"]
model = dict(backbone=dict(tree="deterministic"))
