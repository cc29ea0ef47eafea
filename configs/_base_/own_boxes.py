# Your own images with boxes, from the features of ImageNet that ship: Faster R-CNN on
# EfficientNet-Lite0, 640 pixels, 12 epochs, with a narrow neck and head; the rate is that of
# docs/studies/photos.md. The batch norms keep ImageNet's statistics. The truth of the validation
# comes with its samples. `hypvision train FOLDER` names the data, COCO's or YOLO's, and gives few
# images more epochs.
_base_ = [
    "./models/faster_rcnn_hcformer.py",
    "./datasets/own_coco.py",
    "./schedules/own_adamw_12e.py",
    "./det_runtime.py",
]
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(
        _delete_=True,
        type="TimmBackbone",
        model_name="tf_efficientnet_lite0",
        checkpoint_path="zoo:tf_efficientnet_lite0.imagenet",
        out_indices=(1, 2, 3, 4),
        norm_eval=True,
    ),
    neck=dict(in_channels=[24, 40, 112, 320], out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=1000, max_per_img=300),
        rcnn=dict(sampler=dict(num=128)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=1000, max_per_img=300)),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="Resize", scale=(640, 640), keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(640, 640), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances"),
    ),
]
train_dataloader = dict(
    dataset=dict(pipeline=train_pipeline, filter_cfg=dict(filter_empty_gt=False))
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
val_evaluator = dict(_delete_=True, type="CocoMetric", metric="bbox")
test_evaluator = dict(_delete_=True, type="CocoMetric", metric="bbox")
optim_wrapper = dict(optimizer=dict(lr=1.5e-3, weight_decay=0.02), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=1,
        end=12,
        convert_to_iter_based=True,
    ),
]
