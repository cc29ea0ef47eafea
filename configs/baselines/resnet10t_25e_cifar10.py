# ResNet-10-T under the recipe of hcformer-nano-local_25e_cifar10.py.
_base_ = ["../hcformer/hcformer-nano-local_25e_cifar10.py"]
model = dict(backbone=dict(_delete_=True, model_name="resnet10t", num_classes=10))
