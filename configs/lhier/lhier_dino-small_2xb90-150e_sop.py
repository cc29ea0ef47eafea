# As hier_dino-small_2xb90-150e_sop.py, on the hyperboloid with a learned curvature.
_base_ = ["./hier_dino-small_2xb90-150e_sop.py"]
model = dict(
    neck=dict(_delete_=True, c=1.0, dim=384, geometry="lorentz", learnable=True, slope=2.0)
)
optim_wrapper = dict(optimizer=dict(type="RiemannianAdamW"))
