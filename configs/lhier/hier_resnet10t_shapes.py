# Drawn shapes, 288 instances for training, 96 of other shapes for test; a small network from random
# weights, 15 epochs.
_base_ = [
    "../_base_/datasets/shapes_retrieval.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/cifar10_retrieval.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="resnet10t", pretrained=False),
    neck=dict(dim=64),
    num_classes=288,
    hier_loss=dict(num_proxies=128, neighbours=20),
)
train_cfg = dict(max_epochs=15, val_interval=5)
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
        end=15,
        convert_to_iter_based=True,
    ),
]
