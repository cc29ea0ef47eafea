# LHIER: on the hyperboloid, with a learned curvature. ResNet-50 has 512 dimensions.
model = dict(
    neck=dict(_delete_=True, c=1.0, dim=384, geometry="lorentz", learnable=True, slope=2.0)
)
optim_wrapper = dict(optimizer=dict(type="RiemannianAdamW"))
