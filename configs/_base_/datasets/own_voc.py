# Your own images with boxes, VOC's XML: data/own/{JPEGImages,Annotations}/NAME.{jpg,xml} and the
# lists of names data/own/ImageSets/Main/{train,val}.txt. Measured as COCO does (mAP over overlaps
# of 0.5 to 0.95).
_base_ = ["./own_coco.py"]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(1024, 640), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances"),
    ),
]
voc = dict(type="CheckedVOCDataset", data_prefix=dict(_delete_=True, sub_data_root=""))
train_dataloader = dict(dataset=dict(ann_file="ImageSets/Main/train.txt", **voc))
val_dataloader = dict(
    dataset=dict(ann_file="ImageSets/Main/val.txt", pipeline=test_pipeline, **voc)
)
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True, type="CocoMetric", metric="bbox"
)  # the truth comes with the samples
test_evaluator = val_evaluator
