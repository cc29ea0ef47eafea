# hcformer-nano-clusters_25e_cifar10.py with clusters that stay in use: patches of 2, four centres for 16 pixels in
# the windows of stages 1 to 3, and layer scales of mixers that keep their first value (with patches of 4 training
# brings most of them near 0).
_base_ = ["./hcformer-nano-clusters_25e_cifar10.py"]
model = dict(backbone=dict(patch_size=2, fold=(4, 2, 1, 1)))
optim_wrapper = dict(paramwise_cfg=dict(lr_mult={"backbone.stages.*.layer_scale1": 0.0}))
