# A plain ViT through a simple feature pyramid.
_base_ = [
    "../_base_/models/mask_rcnn_himapper.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_adamw_1x.py",
    "../_base_/det_runtime.py",
]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.openmmlab.pyramid",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.detection",
    ]
)
model = dict(
    backbone=dict(
        model_name="himapper_deit_tiny_patch16_224", out_indices=(11,), drop_path_rate=0.1
    ),
    neck=dict(
        _delete_=True, type="SimpleFeaturePyramid", in_channels=[192], out_channels=256, num_outs=5
    ),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
