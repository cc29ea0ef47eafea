# As hier_efficientnet-lite0_20e_grocery.py, on the hyperboloid with a learned curvature.
_base_ = ["./hier_efficientnet-lite0_20e_grocery.py"]
model = dict(
    neck=dict(_delete_=True, dim=128, geometry="lorentz", c=1.0, learnable=True, slope=2.0)
)
