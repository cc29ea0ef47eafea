# HECNN+ ResNet-50 of Lorentz-Core bottlenecks, otherwise as hecnn-resnet18_200e_tiny-imagenet.py.
_base_ = ["./hecnn-resnet18_200e_tiny-imagenet.py"]
model = dict(backbone=dict(model_name="hecnn_resnet50"))
