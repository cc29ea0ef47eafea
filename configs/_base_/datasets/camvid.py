# CamVid, SegNet's 11 classes: data/camvid/{img,ann}/{train,val,test}, 480 x 360 pixels.
data_root = "data/camvid"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(256, 256), cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="PackSegInputs"),
]
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="RandomFlip", prob=p, direction="horizontal") for p in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="CamVidDataset",
        data_root=data_root,
        data_prefix=dict(img_path="img/train", seg_map_path="ann/train"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    pin_memory=True,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="CamVidDataset",
        data_root=data_root,
        data_prefix=dict(img_path="img/val", seg_map_path="ann/val"),
        pipeline=test_pipeline,
    ),
)
test_data = dict(img_path="img/test", seg_map_path="ann/test")
test_dataloader = dict(
    val_dataloader, dataset=dict(val_dataloader["dataset"], data_prefix=test_data)
)
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
