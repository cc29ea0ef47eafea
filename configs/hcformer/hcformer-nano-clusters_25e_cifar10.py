# hcformer-nano-clusters-p2_25e_cifar10.py with patches of 4 as published, windows and centres for
# maps of 8, 4, 2 and 1 pixels, and layer scales that all learn (training brings most of the mixers'
# near 0): 1.3 core-hours.
_base_ = ["./hcformer-nano-clusters-p2_25e_cifar10.py"]
model = dict(backbone=dict(patch_size=4, fold=(2, 1, 1, 1)))
optim_wrapper = dict(paramwise_cfg=dict(_delete_=True))
