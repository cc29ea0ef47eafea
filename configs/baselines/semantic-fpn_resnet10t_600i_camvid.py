# A Euclidean baseline under the same recipe: ResNet-10-T in place of HCFormer-nano.
_base_ = ["../hcformer/semantic-fpn_hcformer-nano_600i_camvid.py"]
model = dict(
    backbone=dict(
        _delete_=True, type="TimmBackbone", model_name="resnet10t", out_indices=(1, 2, 3, 4)
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
