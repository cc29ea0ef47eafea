# HCFormer-nano on photos of 128 pixels, few a class: the options of hcformer-nano-local_25e_cifar10.py with patches of
# 8, windows and centres for maps of 16, 8, 4 and 2 pixels.
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
        patch_size=8,
        stem="conv",
        local_conv=True,
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        fold=(4, 2, 1, 1),
        prop=(2, 2, 4, 2),
        win=(2, 1, 1, 1),
        mlp_ratios=(4, 4, 4, 4),
        pad="minimal",
        layer_scale=0.1,
        drop_path_rate=0.05,
    ),
    label_smoothing=0.1,
)
train_cfg = dict(max_epochs=100, val_interval=10)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=5, end=100, convert_to_iter_based=True),
]
