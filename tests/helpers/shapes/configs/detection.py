# A slim Mask R-CNN on HCFormer, drawn scenes of 96 x 96 pixels from random weights.
_base_ = [
    "hypvision::_base_/models/mask_rcnn_hcformer.py",
    "hypvision::_base_/datasets/coco_instance.py",
    "hypvision::_base_/schedules/coco_adamw_1x.py",
    "hypvision::_base_/det_runtime.py",
]
data_root = "data/shapes/"
data = dict(metainfo=dict(classes=("branched", "composite", "polygon", "round")))
model = dict(
    backbone=dict(
        model_name="hcformer_nano",
        img_size=64,
        layers=(1, 1, 2, 1),
        mlp_ratios=(4, 4, 4, 4),
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        pad="minimal",
        stem="conv",
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        layer_scale=0.3,
        drop_path_rate=0.0,
    ),
    neck=dict(in_channels=[32, 64, 196, 224], out_channels=64, num_outs=4),
    rpn_head=dict(
        in_channels=64, feat_channels=64, anchor_generator=dict(scales=[5], strides=[4, 8, 16, 32])
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=4),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=4),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=20)),
)
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True, poly2mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="Resize", scale=(96, 96), keep_ratio=True
    ),  # changes nothing, but heads ask for the scale factor
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(
        data,
        data_root=data_root,
        filter_cfg=dict(filter_empty_gt=True, min_size=0),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data, data_root=data_root, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=2, val_interval=2)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=0.02), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
]
