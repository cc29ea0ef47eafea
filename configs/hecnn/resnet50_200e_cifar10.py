# The Euclidean counterpart of HECNN+ ResNet-50, otherwise as hcnn-resnet18_200e_cifar10.py.
_base_ = ["./hcnn-resnet18_200e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet50", hyperbolic_stages=(), head_type="linear"))
