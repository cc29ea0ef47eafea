# HIER on drawn characters: 92 for training, 91 others of the same six alphabets for test; a small
# network from random weights.
_base_ = [
    "../_base_/datasets/omniglot.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/cifar10_retrieval.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="resnet10t", pretrained=False),
    neck=dict(dim=128),
    num_classes=92,
    hier_loss=dict(num_proxies=128),
)
train_cfg = dict(max_epochs=40, val_interval=40)
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
        end=40,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=1, save_best=None))
