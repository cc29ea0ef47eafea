# The Euclidean counterpart of the ResNet-18s, otherwise as hcnn-resnet18_200e_cifar10.py.
_base_ = ["./hcnn-resnet18_200e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet18", hyperbolic_stages=(), head_type="linear"))
