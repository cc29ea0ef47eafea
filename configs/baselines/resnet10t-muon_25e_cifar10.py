# ResNet-10-T under the recipe of hcformer-nano-local_25e_cifar10.py whole, Muon at 4e-3 included: ahead of AdamW after
# two epochs of tools/hcformer_study.py, for three times the time of a step.
_base_ = ["../hcformer/hcformer-nano-local_25e_cifar10.py"]
model = dict(backbone=dict(_delete_=True, model_name="resnet10t", num_classes=10))
