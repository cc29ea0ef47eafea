# The recipe of the papers (Riemannian SGD with Nesterov momentum) in 3 epochs: half an epoch of
# warm-up, then cosine.
train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=1)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="RiemannianParamGroups",
    optimizer=dict(type="RiemannianSGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    paramwise_cfg=dict(manifold_lr_scale=0.2, curvature_lr=0.01),
)
auto_scale_lr = dict(base_batch_size=128, enable=True)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=0.5,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0.5,
        end=3,
        convert_to_iter_based=True,
    ),
]
