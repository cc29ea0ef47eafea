# As for lvit_tiny, twice as wide.
_base_ = ["./mask-rcnn_lvit-tiny_8xb2-1x_coco.py"]
model = dict(backbone=dict(model_name="lvit_small"), neck=dict(in_channels=[384]))
