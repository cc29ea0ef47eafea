# Ours: the last map attends to the tree, and the losses of the tree are added.
_base_ = ["./upernet_himapper-swin-tiny_8xb2-160k_ade20k-512x512.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.openmmlab.backbone_losses",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.segmentation",
    ]
)
model = dict(type="BackboneLossSegmentor", backbone=dict(dense="fuse"))
