# Ours: the tree is kept while training, and its losses added.
_base_ = ["./mask-rcnn_himapper-resnet50_8xb2-1x_coco.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.openmmlab.backbone_losses",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.detection",
    ]
)
model = dict(type="BackboneLossMaskRCNN", backbone=dict(dense="aux"))
