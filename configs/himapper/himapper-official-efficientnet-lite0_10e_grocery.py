# Ablation: the numerics of the released code.
_base_ = ["./himapper-efficientnet-lite0_10e_grocery.py"]
model = dict(backbone=dict(preset="official"))
