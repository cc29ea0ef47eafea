# LViT of the size tiny on CIFAR-10 with the recipe of HyperCore: AdamW, its rate divided by 10
# every 30 of 300 epochs, positions decayed by a hundredth of the others' share. The size and the
# patches of 4 pixels are ours. No number is published for it.
_base_ = ["../_base_/datasets/cifar10.py", "../_base_/default_runtime.py"]
# crops and mirrored views
train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        transform=dict(pad_mode="constant", auto_augment=None, color_jitter=None, re_prob=0.0)
    ),
)
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="lvit_tiny", num_classes=10, img_size=32, patch_size=4, proj_drop_rate=0.1
    ),
)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=10)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=1e-2),
    paramwise_cfg=dict(custom_keys={"pos_embed": dict(decay_mult=0.01)}),
)
auto_scale_lr = dict(base_batch_size=64, enable=True)
param_scheduler = [dict(type="StepLR", by_epoch=True, step_size=30, gamma=0.1)]
