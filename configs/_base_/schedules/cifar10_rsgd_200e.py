# The recipe of the papers: 200 epochs at batch 128, learning rate divided by 5 after 60, 120 and
# 160 of them. That of points is 0.02 from the start and so leaves out the first division. Biases
# and norms decay like all else.
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=10)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="RiemannianParamGroups",
    optimizer=dict(type="RiemannianSGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    paramwise_cfg=dict(manifold_lr_scale=0.2, curvature_lr=1e-3, decay_all=True),
)
auto_scale_lr = dict(base_batch_size=128, enable=True)
param_scheduler = [
    dict(type="GroupMultiStepLR", by_epoch=True, milestones=[60], gamma=0.2, leave_out=("points",)),
    dict(type="GroupMultiStepLR", by_epoch=True, milestones=[120, 160], gamma=0.2),
]
