# The Euclidean counterpart of hcnn-resnet18-small_3e_cifar10.py: same architecture, data, steps and
# optimiser.
_base_ = ["./hcnn-resnet18-small_3e_cifar10.py"]
model = dict(backbone=dict(model_name="hecnn_resnet18", hyperbolic_stages=(), head_type="linear"))
