# The short trainings of hcformer-nano_diagnosis_cifar10.py for a ViT of about the same time a step: 64 patches and 5
# blocks of width 192 (2.3 M parameters).
_base_ = ["../hcformer/hcformer-nano_diagnosis_cifar10.py"]
model = dict(
    backbone=dict(_delete_=True, model_name="vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=4, depth=5)
)
