# HCFormer-nano on photos of 128 pixels, few a class, with the network for small data and Muon: patches of 8, windows
# and centres for maps of 16, 8, 4 and 2 pixels.
_base_ = [
    "../_base_/models/hcformer_nano_local.py",
    "../_base_/datasets/grocery.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    backbone=dict(num_classes=81, img_size=128, patch_size=8, fold=(4, 2, 1, 1), prop=(2, 2, 4, 2), win=(2, 1, 1, 1))
)
train_cfg = dict(max_epochs=100, val_interval=10)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=5, end=100, convert_to_iter_based=True),
]
