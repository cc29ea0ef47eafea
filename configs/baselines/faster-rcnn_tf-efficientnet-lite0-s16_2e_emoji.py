# faster-rcnn_tf-efficientnet-lite0_2e_emoji.py without the last two stages, those of stride 32: a
# quarter of the backbone's parameters.
_base_ = ["./faster-rcnn_tf-efficientnet-lite0_2e_emoji.py"]
model = dict(
    backbone=dict(
        out_indices=(1, 2, 3), feature_cls="getter"
    ),  # timm's getter cuts off what no level needs
    neck=dict(in_channels=[24, 40, 112], num_outs=3),
    rpn_head=dict(anchor_generator=dict(strides=[4, 8, 16])),
    roi_head=dict(bbox_roi_extractor=dict(featmap_strides=[4, 8, 16])),
)
