# HECNN+ ResNet-50 (Lorentz-Core bottlenecks, learned curvature), otherwise as
# hcnn-resnet18-small_3e_cifar10.py.
_base_ = ["./hcnn-resnet18-small_3e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet50", widths=(16, 32, 64, 128)))
