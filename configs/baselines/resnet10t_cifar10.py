# A Euclidean baseline of the size of HCFormer-nano under the same recipe: timm's ResNet-10-T (4.9 M
# parameters).
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="resnet10t", num_classes=10),
    label_smoothing=0.1,
)
