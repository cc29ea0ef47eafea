# As efficientnet-lite0_10e_grocery.py with Busemann functions of learned ideal points (Chen et al.,
# CVPR 2026) in place of the linear head.
_base_ = ["./efficientnet-lite0_10e_grocery.py"]
model = dict(busemann=dict(c=1.0, clip=1.0))
