# mmdet's Mask R-CNN on the backbone of a Hi-Mapper, see upernet_himapper.py; a config sets
# model_name and the neck.
_base_ = ["mmdet::_base_/models/mask-rcnn_r50_fpn.py"]
model = dict(
    backbone=dict(_delete_=True, type="TimmBackbone", model_name="himapper_resnet50", dense="init"),
)
