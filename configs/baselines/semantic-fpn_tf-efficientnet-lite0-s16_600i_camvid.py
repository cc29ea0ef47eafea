# semantic-fpn_tf-efficientnet-lite0_600i_camvid.py without the last two stages, those of stride 32:
# a quarter of the backbone's parameters.
_base_ = ["./semantic-fpn_tf-efficientnet-lite0_600i_camvid.py"]
model = dict(
    backbone=dict(
        out_indices=(1, 2, 3), feature_cls="getter"
    ),  # timm's getter cuts off what no level needs
    neck=dict(in_channels=[24, 40, 112], num_outs=3),
    decode_head=dict(in_channels=[96, 96, 96], in_index=[0, 1, 2], feature_strides=[4, 8, 16]),
)
