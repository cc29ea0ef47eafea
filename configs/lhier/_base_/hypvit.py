# What the published recipes of Hyp-ViT share (Ermolov et al., CVPR 2022); ../recipes.csv has a row
# for each of them. Their epochs have every class once, so that lengths are in steps. The patch
# embedding rests (freeze=0); to freeze N blocks too, add "blocks.0.*" and so on to model.frozen.
_base_ = ["../../_base_/retrieval_runtime.py"]
model = dict(
    type="MetricLearner",
    backbone=dict(pretrained=True),
    neck=dict(
        geometry="poincare", c=0.1, clip_radius=2.3, dim=128, last_norm=False, riemannian=False
    ),
    metric_loss=dict(name="SupConLoss", distance="hyperbolic", temperature=0.2, reduction="sum"),
)
train_cfg = dict(by_epoch=False, max_iters=50, val_interval=50)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    loss_scale="dynamic",
    optimizer=dict(type="AdamW", lr=3e-5, weight_decay=1e-2),
    clip_grad=dict(max_norm=3.0),
)
param_scheduler = []
log_processor = dict(by_epoch=False)
train_dataloader = dict(batch_size=900, batch_sampler=dict(m=9, replace=False))
val_evaluator = dict(encoder=True)  # the published table has recalls of the encoder
test_evaluator = val_evaluator
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=50))
