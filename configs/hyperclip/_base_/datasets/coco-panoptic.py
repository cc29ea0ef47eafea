# COCO 2017 panoptic, 133 classes, 17 of them held out from training:
# data/coco/{train2017,val2017,annotations/panoptic_{train,val}2017{,.json}}.
data_root = "data/coco/"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadPanopticSegments"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="RandomResize", scale=(640, 640), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(
        type="RandomCrop",
        crop_type="absolute",
        crop_size=(640, 640),
        recompute_bbox=True,
        allow_negative_crop=True,
    ),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadPanopticSegments"),
    dict(type="Resize", scale=(640, 640), keep_ratio=True),
    dict(
        type="PackDetInputs",
        meta_keys=(
            "img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "panoptic_ids",
            "segments_info"
        ),
    ),
]  # fmt: skip
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    pin_memory=True,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
    dataset=dict(
        type="OpenVocabPanopticDataset",
        classes="coco133",
        ignore_classes="coco17",
        data_root=data_root,
        ann_file="annotations/panoptic_train2017.json",
        data_prefix=dict(img="train2017/", seg="annotations/panoptic_train2017/"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabPanopticDataset",
        classes="coco133",
        data_root=data_root,
        ann_file="annotations/panoptic_val2017.json",
        data_prefix=dict(img="val2017/", seg="annotations/panoptic_val2017/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="OpenVocabPanopticMetric", groups=dict(novel="coco17"))
test_evaluator = val_evaluator
