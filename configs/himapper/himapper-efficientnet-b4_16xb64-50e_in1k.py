# At 380 pixels, where the backbone has the accuracy that the paper starts from.
_base_ = [
    "../_base_/datasets/imagenet1k.py",
    "../_base_/schedules/imagenet_finetune_50e.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="HierarchyClassifier",
    backbone=dict(
        model_name="himapper_efficientnet_b4", pretrained=True, num_classes=1000, drop_path_rate=0.1
    ),
    label_smoothing=0.1,
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5),
)
train_dataloader = dict(
    batch_size=64, dataset=dict(transform=dict(input_size=380, color_jitter=0.3))
)
val_dataloader = dict(dataset=dict(transform=dict(input_size=380, crop_pct=0.922)))
test_dataloader = val_dataloader
