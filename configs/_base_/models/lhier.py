# LHIER (Bdeir et al., NeurIPS 2025): the hyperboloid with a learned curvature, proxies as points, rescaled radii.
model = dict(
    type="MetricLearner",
    backbone=dict(pretrained=True),
    neck=dict(geometry="lorentz", c=1.0, learnable=True, slope=2.0),
    metric_loss=dict(name="ProxyAnchorLoss", distance="angular"),
    hier_loss=dict(num_proxies=512, temperature=0.1, margin=0.1, neighbours=20, draws=50),
    hier_weight=0.5,
)
