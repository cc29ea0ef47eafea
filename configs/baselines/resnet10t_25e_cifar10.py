# ResNet-10-T under the recipe of hcformer-nano-clusters_25e_cifar10.py, but with AdamW, in place of
# Muon. The rate is the better one of 1e-3 and 3e-3 in studies/hcformer_study.py.
_base_ = ["../hcformer/hcformer-nano-clusters_25e_cifar10.py"]
model = dict(backbone=dict(_delete_=True, model_name="resnet10t", num_classes=10))
optim_wrapper = dict(optimizer=dict(type="AdamW", lr=3e-3))
