# HECNN+ ResNet-18 of the zoo: as hecnn-resnet18-small_3e_cifar10.py with three quarters of the
# channels, for 15 epochs.
_base_ = ["./hecnn-resnet18-small_3e_cifar10.py"]
model = dict(backbone=dict(widths=(24, 48, 96, 192)))
train_cfg = dict(max_epochs=15, val_interval=5)
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
        end=15,
        convert_to_iter_based=True,
    ),
]
