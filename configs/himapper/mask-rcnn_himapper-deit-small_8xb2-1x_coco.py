# As for deit-tiny, twice as wide.
_base_ = ["./mask-rcnn_himapper-deit-tiny_8xb2-1x_coco.py"]
model = dict(
    backbone=dict(model_name="himapper_deit_small_patch16_224"), neck=dict(in_channels=[384])
)
