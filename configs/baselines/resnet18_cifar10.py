# A Euclidean baseline under the same recipe: timm's ResNet-18 as it is (its stem halves a picture twice).
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="resnet18", num_classes=10),
    label_smoothing=0.1,
)
