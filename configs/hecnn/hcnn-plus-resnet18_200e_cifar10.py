# HCNN+ ResNet-18: learned curvature, efficient convolution, rescaling, otherwise as
# hcnn-resnet18_200e_cifar10.py.
_base_ = ["./hcnn-resnet18_200e_cifar10.py"]
model = dict(backbone=dict(plus=True))
