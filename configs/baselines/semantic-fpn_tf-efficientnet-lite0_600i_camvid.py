# Semantic FPN on EfficientNet-Lite0 as trained on ImageNet, which ships: the recipe of ResNet-10-T
# and HCFormer-nano. From scratch: model.backbone.checkpoint_path=None.
_base_ = ["../hcformer/semantic-fpn_hcformer-nano_600i_camvid.py"]
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(
        _delete_=True,
        type="TimmBackbone",
        model_name="tf_efficientnet_lite0",
        checkpoint_path="zoo:tf_efficientnet_lite0.imagenet",
        out_indices=(1, 2, 3, 4),
    ),
    neck=dict(in_channels=[24, 40, 112, 320]),
)
