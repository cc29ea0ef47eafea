# HCFormer-nano on CIFAR-10, with the network for small data and Muon, in 76 minutes of one CPU core: patches of 4 as
# published, windows and centres for maps of 8, 4, 2 and 1 pixels.
_base_ = [
    "../_base_/models/hcformer_nano_local.py",
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    backbone=dict(num_classes=10, img_size=32, patch_size=4, fold=(2, 1, 1, 1), prop=(2, 2, 2, 1), win=(2, 1, 1, 1))
)
train_dataloader = dict(batch_size=64, num_workers=0)
train_cfg = dict(max_epochs=25, val_interval=5)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=1, end=25, convert_to_iter_based=True),
]
