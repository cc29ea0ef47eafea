# hcformer-nano-local_25e_cifar10.py with clusters that are used: a centre is near the pixels it was pooled from
# (locality), and no depthwise convolutions do the mixers' work.
_base_ = ["./hcformer-nano-local_25e_cifar10.py"]
model = dict(backbone=dict(local_conv=False, locality=2.0))
