_base_ = [
    "../_base_/models/mask_rcnn_himapper.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_adamw_1x.py",
    "../_base_/det_runtime.py",
]
model = dict(
    backbone=dict(model_name="himapper_swin_tiny_patch4_window7_224", drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
