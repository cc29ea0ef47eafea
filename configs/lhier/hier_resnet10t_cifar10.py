# CIFAR-10, 6 classes for training, 4 others for test; a small network from random weights.
_base_ = [
    "../_base_/datasets/cifar10_retrieval.py",
    "../_base_/models/hier.py",
    "../_base_/schedules/cifar10_retrieval.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="resnet10t", pretrained=False),
    neck=dict(dim=64),
    num_classes=6,
    # 16 images of a class are each other's nearest; twice as many neighbours reach beyond it
    hier_loss=dict(num_proxies=128, neighbours=32),
)
