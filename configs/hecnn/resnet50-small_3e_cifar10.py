# The Euclidean counterpart of hecnn-resnet50-small_3e_cifar10.py: same architecture, data, steps
# and optimiser.
_base_ = ["./hecnn-resnet50-small_3e_cifar10.py"]
model = dict(backbone=dict(hyperbolic_stages=(), head_type="linear"))
