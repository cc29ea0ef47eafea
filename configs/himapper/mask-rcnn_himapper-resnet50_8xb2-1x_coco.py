_base_ = [
    "../_base_/models/mask_rcnn_himapper.py",
    "../_base_/datasets/coco_instance.py",
    "../_base_/schedules/coco_adamw_1x.py",
    "../_base_/det_runtime.py",
]
model = dict(
    backbone=dict(
        model_name="himapper_resnet50", out_indices=(1, 2, 3, 4), frozen_stages=1, norm_eval=True
    ),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
