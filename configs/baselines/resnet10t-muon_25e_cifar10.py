# ResNet-10-T under the recipe of hcformer-nano-clusters_25e_cifar10.py whole, Muon at 4e-3
# included: 84.7 % in 1.3 core-hours where AdamW has 82.3 in 1.0.
_base_ = ["../hcformer/hcformer-nano-clusters_25e_cifar10.py"]
model = dict(backbone=dict(_delete_=True, model_name="resnet10t", num_classes=10))
