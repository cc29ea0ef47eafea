# The short form of hcformer-nano_cifar10.py: what one CPU core does in half an hour.
_base_ = ["./hcformer-nano_cifar10.py"]
train_cfg = dict(max_epochs=8)
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
        end=8,
        convert_to_iter_based=True,
    ),
]
