_base_ = [
    "../_base_/datasets/imagenet1k.py",
    "../_base_/schedules/imagenet_finetune_50e.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="HierarchyClassifier",
    backbone=dict(
        model_name="himapper_deit_tiny_patch16_224",
        pretrained=True,
        num_classes=1000,
        drop_path_rate=0.1,
    ),
    label_smoothing=0.1,
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5),
)
train_dataloader = dict(dataset=dict(transform=dict(color_jitter=0.3)))
val_dataloader = dict(dataset=dict(transform=dict(crop_pct=0.875)))
test_dataloader = val_dataloader
