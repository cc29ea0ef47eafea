# LViT on CIFAR-100, otherwise as lvit-tiny_300e_cifar10.py. The images are written by hypvision
# data prepare cifar100.
_base_ = ["./lvit-tiny_300e_cifar10.py"]
data_root = "data/cifar100"
model = dict(backbone=dict(num_classes=100))
