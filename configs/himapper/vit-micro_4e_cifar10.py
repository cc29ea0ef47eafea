# The backbone that the comparison on CIFAR-10 starts from: a ViT of 0.8 M parameters on patches of
# 4 pixels (8 x 8 tokens), trained from scratch for as long as one CPU core needs for it in a
# quarter of an hour. Weak augmentation: a training this short underfits.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="vit_tiny_patch16_224",
        num_classes=10,
        img_size=32,
        patch_size=4,
        embed_dim=128,
        depth=4,
        num_heads=4,
        dynamic_img_size=True,
    ),
    label_smoothing=0.1,
)
train_dataloader = dict(
    batch_size=64, num_workers=1, dataset=dict(transform=dict(auto_augment=None, re_prob=0.0))
)
train_cfg = dict(max_epochs=4)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
auto_scale_lr = dict(base_batch_size=64)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=100),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=False, begin=100, end=1872),
]
