# Faster R-CNN on EfficientNet-Lite0 as trained on ImageNet, which ships: emoji on photos in 8
# groups, 128 x 128 pixels. From scratch: model.backbone.checkpoint_path=None. The data:
#   hypvision data make data/emoji-coco --layout coco --level group --train 2000 --val 500 \
#       --emoji data/emoji --photos data/grocery/images
_base_ = [
    "../_base_/models/faster_rcnn_hcformer.py",
    "../_base_/datasets/own_coco.py",
    "../_base_/schedules/own_adamw_12e.py",
    "../_base_/det_runtime.py",
]
data_root = "data/emoji-coco/"
classes = (
    "smiley or emotion", "person or body part", "animal or plant", "food or drink",
    "travel or place", "activity", "object", "symbol",
)  # fmt: skip
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(
        _delete_=True,
        type="TimmBackbone",
        model_name="tf_efficientnet_lite0",
        checkpoint_path="zoo:tf_efficientnet_lite0.imagenet",
        out_indices=(1, 2, 3, 4),
    ),
    neck=dict(in_channels=[24, 40, 112, 320], out_channels=64, num_outs=4),
    rpn_head=dict(
        in_channels=64, feat_channels=64, anchor_generator=dict(scales=[5], strides=[4, 8, 16, 32])
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=8),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=20)),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        metainfo=dict(classes=classes),
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        filter_cfg=dict(min_size=0),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        metainfo=dict(classes=classes),
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(
                type="Resize", scale=(128, 128), keep_ratio=True
            ),  # changes nothing, but heads ask for the scale
            dict(type="LoadAnnotations", with_bbox=True),
            dict(
                type="PackDetInputs",
                meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
            ),
        ],
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=2, val_interval=2)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=0.02), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=100),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
]
