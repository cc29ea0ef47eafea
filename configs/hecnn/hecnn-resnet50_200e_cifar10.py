# HECNN+ ResNet-50 of Lorentz-Core bottlenecks, otherwise as hcnn-resnet18_200e_cifar10.py.
_base_ = ["./hcnn-resnet18_200e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet50"))
