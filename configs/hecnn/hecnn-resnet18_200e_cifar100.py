# HECNN+ ResNet-18 on CIFAR-100, otherwise as hecnn-resnet18_200e_cifar10.py. The images are written
# by hypvision data prepare cifar100; the networks to compare with are options, see
# docs/reproduce.md.
_base_ = ["./hecnn-resnet18_200e_cifar10.py"]
data_root = "data/cifar100"
model = dict(backbone=dict(num_classes=100))
