# As hier_resnet10t_40e_omniglot.py, on the hyperboloid with a learned curvature.
_base_ = ["./hier_resnet10t_40e_omniglot.py"]
model = dict(
    neck=dict(_delete_=True, dim=128, geometry="lorentz", c=1.0, learnable=True, slope=2.0)
)
