# The short trainings of hcformer-nano_diagnosis_cifar10.py for ResNet-10-T.
_base_ = ["../hcformer/hcformer-nano_diagnosis_cifar10.py"]
model = dict(backbone=dict(_delete_=True, model_name="resnet10t", num_classes=10))
