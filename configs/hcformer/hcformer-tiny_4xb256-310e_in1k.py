_base_ = [
    "../_base_/datasets/imagenet1k.py",
    "../_base_/schedules/imagenet_adamw_310e.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="hcformer_tiny", num_classes=1000, drop_path_rate=0.1),
    label_smoothing=0.1,
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5),
)
train_dataloader = dict(batch_size=256, dataset=dict(transform=dict(interpolation="random")))
