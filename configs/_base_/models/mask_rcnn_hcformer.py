# mmdet's Mask R-CNN with FPN, its ResNet replaced by an HCFormer; a config sets model_name and the
# neck's in_channels. Starting from ImageNet: model.backbone.init_cfg = dict(type="Pretrained",
# checkpoint=FILE).
_base_ = ["mmdet::_base_/models/mask-rcnn_r50_fpn.py"]
model = dict(
    backbone=dict(_delete_=True, type="TimmBackbone", model_name="hcformer_tiny"),
    neck=dict(in_channels=[32, 64, 196, 320]),
    roi_head=dict(mask_head=dict(type="SmallFCNMaskHead")),
)
