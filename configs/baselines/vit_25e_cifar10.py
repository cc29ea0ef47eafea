# The ViT of vit_diagnosis_cifar10.py under the recipe of hcformer-nano-clusters_25e_cifar10.py
# whole, Muon at 4e-3 included: of its rates in studies/hcformer_study.py the best.
_base_ = ["../hcformer/hcformer-nano-clusters_25e_cifar10.py"]
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
