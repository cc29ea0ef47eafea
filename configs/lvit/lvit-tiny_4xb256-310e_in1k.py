# LViT of the size tiny on ImageNet-1k. No recipe is published for it: this is that of HCFormer,
# as common for transformers, with the mean and deviation of the pixels that ViTs have in timm.
_base_ = [
    "../_base_/datasets/imagenet1k.py",
    "../_base_/schedules/imagenet_adamw_310e.py",
    "../_base_/default_runtime.py",
]
normalisation = dict(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="lvit_tiny", num_classes=1000, drop_path_rate=0.1),
    label_smoothing=0.1,
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5),
)
train_dataloader = dict(
    batch_size=256,
    dataset=dict(transform=dict(interpolation="random", color_jitter=0.4, **normalisation)),
)
val_dataloader = dict(dataset=dict(transform=normalisation))
test_dataloader = val_dataloader
