# hcformer-nano-local_25e_cifar10.py with `locality` (a centre is near the pixels it was pooled from) in place of
# depthwise convolutions.
_base_ = ["./hcformer-nano-local_25e_cifar10.py"]
model = dict(backbone=dict(local_conv=False, locality=2.0))
