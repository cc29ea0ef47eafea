# As hier_resnet10t_shapes.py, on the hyperboloid with a learned curvature.
_base_ = ["./hier_resnet10t_shapes.py"]
model = dict(neck=dict(_delete_=True, dim=64, geometry="lorentz", c=1.0, learnable=True, slope=2.0))
