# As hier_efficientnet-lite0_20e_grocery.py with Hyp-ViT's head and loss (Ermolov et al., CVPR
# 2022): pairs of photos of a class in a ball, and no proxies.
_base_ = ["./hier_efficientnet-lite0_20e_grocery.py"]
model = dict(
    neck=dict(last_norm=False, riemannian=False),
    metric_loss=dict(
        _delete_=True,
        name="SupConLoss",
        distance="hyperbolic",
        temperature=0.2,
        reduction="sum",
    ),
    hier_loss=None,
)
optim_wrapper = dict(clip_grad=dict(_delete_=True, max_norm=3.0))
