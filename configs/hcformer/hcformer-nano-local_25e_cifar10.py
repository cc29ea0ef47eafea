# hcformer-nano-clusters_25e_cifar10.py with a depthwise convolution before each block in place of
# `locality` (a centre is near the pixels it was pooled from).
_base_ = ["./hcformer-nano-clusters_25e_cifar10.py"]
model = dict(backbone=dict(local_conv=True, locality=0.0))
