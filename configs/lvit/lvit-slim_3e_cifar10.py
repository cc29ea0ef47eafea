# LViT, 3 epochs of CIFAR-10, small enough for one busy CPU core: patches of 8, 4 blocks of 64
# dimensions.
# AdamW's rate, decay and schedule are those of this repository's trainings of CIFAR-10, not the
# published ones.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
# crops and mirrored views
train_dataloader = dict(dataset=dict(transform=dict(auto_augment=None, re_prob=0.0)))
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="lvit_tiny",
        num_classes=10,
        img_size=32,
        patch_size=8,
        embed_dim=64,
        depth=4,
        num_heads=2,
    ),
)
train_cfg = dict(max_epochs=3)
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
        end=3,
        convert_to_iter_based=True,
    ),
]
