# Your own images with boxes, VOC's XML: data/own/{JPEGImages,Annotations}/NAME.{jpg,xml} and the lists of names
# data/own/ImageSets/Main/{train,val}.txt. Measured as COCO does (mAP over overlaps of 0.5 to 0.95).
data_root = "data/own/"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="Resize", scale=(1024, 640), keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(1024, 640), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances"),
    ),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="AspectRatioBatchSampler"),
    dataset=dict(
        type="CheckedVOCDataset",
        data_root=data_root,
        ann_file="ImageSets/Main/train.txt",
        data_prefix=dict(sub_data_root=""),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="CheckedVOCDataset",
        data_root=data_root,
        ann_file="ImageSets/Main/val.txt",
        data_prefix=dict(sub_data_root=""),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="CocoMetric", metric="bbox")  # the truth comes with the samples
test_evaluator = val_evaluator
