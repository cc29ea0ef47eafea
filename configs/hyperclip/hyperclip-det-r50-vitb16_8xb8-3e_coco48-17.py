# The same with proposals, boxes and the trained head on a ResNet-50 of their own; CLIP gives its
# half of the scores.
_base_ = ["./hyperclip-det-vitb16_8xb8-3e_coco48-17.py"]
model = dict(
    backbone=dict(
        type="ResNet",
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        frozen_stages=1,
        norm_cfg=dict(type="BN", requires_grad=True),
        norm_eval=True,
        style="pytorch",
        init_cfg=dict(type="Pretrained", checkpoint="torchvision://resnet50"),
    ),
    neck=dict(
        _delete_=True, type="FPN", in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5
    ),
)
