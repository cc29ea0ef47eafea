# HIER (Kim et al., CVPR 2023): a ball of curvature 0.1, proxies mapped into it in each step.
model = dict(
    type="MetricLearner",
    backbone=dict(pretrained=True),
    neck=dict(geometry="poincare", c=0.1, clip_radius=2.3),
    metric_loss=dict(name="ProxyAnchorLoss", distance="angular"),
    hier_loss=dict(num_proxies=512, temperature=0.1, margin=0.1, neighbours=20, draws=50),
    hier_weight=0.5,
)
