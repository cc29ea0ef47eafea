# The short trainings of hcformer-nano_diagnosis_cifar10.py for a ViT whose step takes as long as
# that of hcformer-nano-clusters_25e_cifar10.py: 64 patches of 4 pixels and 4 blocks of width 128
# (0.8 M parameters).
_base_ = ["../hcformer/hcformer-nano_diagnosis_cifar10.py"]
model = dict(
    backbone=dict(
        _delete_=True,
        model_name="vit_tiny_patch16_224",
        num_classes=10,
        img_size=32,
        patch_size=4,
        embed_dim=128,
        depth=4,
        num_heads=4,
    )
)
