# Ours: the last map attends to the tree, and the losses of the tree are added.
_base_ = ["./mask-rcnn_himapper-resnet50_8xb2-1x_coco.py"]
custom_imports = dict(
    imports=["hypvision.mm", "hypvision.mm.auxiliary_det", "hypvision.tasks", "hypvision.mm.det_datasets"]
)
model = dict(type="BackboneLossMaskRCNN", backbone=dict(dense="fuse"))
