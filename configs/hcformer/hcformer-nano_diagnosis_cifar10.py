# For questions about the network, minutes each: every third image for training, 3,334 others of the
# training set for validation, 3 epochs. The options that a question changes go on the command line.
_base_ = ["./hcformer-nano_cifar10.py"]
data_root = "data/cifar10"
train_dataloader = dict(batch_size=64, num_workers=0, dataset=dict(indices=range(0, 30000, 3)))
val_dataloader = dict(
    num_workers=0, dataset=dict(root=data_root + "/train", indices=range(1, 30000, 9))
)
train_cfg = dict(max_epochs=3, val_interval=3)
auto_scale_lr = dict(enable=False)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=0.3,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0.3,
        end=3,
        convert_to_iter_based=True,
    ),
]
