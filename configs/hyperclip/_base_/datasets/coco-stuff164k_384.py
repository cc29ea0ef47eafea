# Training: COCO-Stuff 164k, 171 classes, crops of 384 pixels:
# data/coco_stuff164k/{images,annotations}/{train,val}2017.
data_root = "data/coco_stuff164k"
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="Resize", scale=(1333, 384), keep_ratio=True, backend="pillow"),
    dict(type="RandomCrop", crop_size=(384, 384), cat_max_ratio=1.0),
    dict(type="PhotoMetricDistortion"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="Pad", size=(384, 384), pad_val=dict(img=(128, 128, 128), seg=255)),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=1,
    num_workers=4,
    pin_memory=True,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="COCOStuffDataset",
        data_root=data_root,
        data_prefix=dict(img_path="images/train2017", seg_map_path="annotations/train2017"),
        pipeline=train_pipeline,
    ),
)
