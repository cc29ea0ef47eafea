_base_ = [
    "../_base_/models/mask_rcnn_hcformer.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_adamw_1x.py",
    "../_base_/det_runtime.py",
]
model = dict(backbone=dict(model_name="hcformer_tiny"), neck=dict(in_channels=[32, 64, 196, 320]))
optim_wrapper = dict(
    constructor="DefaultOptimWrapperConstructor"
)  # as published: every parameter is decayed
