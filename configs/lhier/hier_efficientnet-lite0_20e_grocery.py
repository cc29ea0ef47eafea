# HIER on ImageNet's features: groceries of 41 classes for training, of 40 others for test. Give the
# weights by --cfg-options model.checkpoint=FILE. Batch norms rest, and so do the stem and the first
# three of seven stages: 2 % of the parameters, 40 % of the time.
_base_ = [
    "../_base_/datasets/grocery_retrieval.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/cifar10_retrieval.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    checkpoint="data/efficientnet_lite0/tf_efficientnet_lite0.safetensors",
    backbone=dict(model_name="tf_efficientnet_lite0", pretrained=False),
    frozen=("conv_stem.*", "bn1.*", "blocks.[012].*"),
    freeze_bn=True,
    channels_last=True,
    neck=dict(dim=128),
    num_classes=41,
    hier_loss=dict(num_proxies=128),
)
train_cfg = dict(max_epochs=20, val_interval=20)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    paramwise_cfg=dict(neck_lr_scale=10.0, hier_lr_scale=50.0, class_lr_scale=100.0),
)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=1,
        end=20,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=1, save_best=None))
