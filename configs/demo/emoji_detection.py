# The third part of `make demo`: a slim Mask R-CNN on scenes of emoji on photos, from the detector
# of drawn shapes that ships.
_base_ = ["./detection.py"]
load_from = "zoo:mask-rcnn_hcformer_nano.shapes"
data_root = "work_dirs/demo/data/coco/"
model = dict(backbone=dict(init_cfg=None))
data = dict(
    _delete_=True, type="CocoDataset", metainfo=dict(classes=("face", "animal", "food", "vehicle"))
)
train_dataloader = dict(
    dataset=dict(
        data,
        data_root=data_root,
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        filter_cfg=dict(filter_empty_gt=True, min_size=0),
        pipeline={{_base_.train_pipeline}},
    )
)
val_dataloader = dict(
    dataset=dict(
        data,
        data_root=data_root,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        test_mode=True,
        pipeline={{_base_.test_pipeline}},
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator
