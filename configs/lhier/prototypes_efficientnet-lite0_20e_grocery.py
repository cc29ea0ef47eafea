# As hier_efficientnet-lite0_20e_grocery.py with ideal prototypes (Ghadimi Atigh et al., NeurIPS
# 2021) in place of HIER's proxies.
_base_ = ["./hier_efficientnet-lite0_20e_grocery.py"]
model = dict(
    metric_loss=dict(_delete_=True, name="PrototypeMetricLoss", distance="hyperbolic"),
    hier_loss=None,
)
