# HCFormer-Nano on 32 x 32 pictures: patches of 2 pixels, trained from scratch.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="hcformer_nano", num_classes=10, img_size=32, patch_size=2, drop_path_rate=0.05),
    label_smoothing=0.1,
)
