# The last map through a simple feature pyramid.
_base_ = [
    "../_base_/models/upernet_himapper.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_adamw_upernet.py",
    "../_base_/seg_runtime.py",
]
train_dataloader = dict(batch_size=2)
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.openmmlab.pyramid",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.segmentation",
    ]
)
model = dict(
    backbone=dict(model_name="himapper_deit_tiny_patch16_224", out_indices=(11,)),
    neck=dict(type="SimpleFeaturePyramid", in_channels=[192], out_channels=192),
    decode_head=dict(in_channels=[192, 192, 192, 192]),
    auxiliary_head=dict(in_channels=192, in_index=2),
)
