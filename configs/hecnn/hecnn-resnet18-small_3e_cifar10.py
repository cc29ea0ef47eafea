# HECNN+ ResNet-18 (stages 1 and 3 hyperbolic, learned curvature), otherwise as
# hcnn-resnet18-small_3e_cifar10.py.
_base_ = ["./hcnn-resnet18-small_3e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet18"))
