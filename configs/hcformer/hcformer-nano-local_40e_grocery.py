# HCFormer-nano on photos of 128 pixels, few a class: the published patches of 4, windows and centres scaled to maps of
# 32, 16, 8 and 4 pixels, and the options of hcformer-nano-local_30e_cifar10.py.
_base_ = [
    "../_base_/datasets/grocery.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcformer_nano",
        num_classes=81,
        img_size=128,
        stem="conv",
        local_conv=True,
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        fold=(4, 4, 1, 1),
        prop=(4, 2, 4, 2),
        win=(2, 2, 1, 1),
        mlp_ratios=(4, 4, 4, 4),
        pad="minimal",
        layer_scale=0.1,
        drop_path_rate=0.05,
    ),
    label_smoothing=0.1,
)
train_cfg = dict(max_epochs=40, val_interval=5)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=2, end=40, convert_to_iter_based=True),
]
