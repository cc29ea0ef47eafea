# The third part of `make demo`: Faster R-CNN on scenes of emoji on photos, from the detector of
# eight groups of emoji that ships.
_base_ = ["../baselines/faster-rcnn_tf-efficientnet-lite0-s16_2e_emoji.py"]
load_from = "zoo:faster-rcnn_tf_efficientnet_lite0.emoji"
data_root = "work_dirs/demo/data/coco/"
model = dict(backbone=dict(checkpoint_path=None), roi_head=dict(bbox_head=dict(num_classes=4)))
data = dict(data_root=data_root, metainfo=dict(classes=("face", "animal", "food", "vehicle")))
train_dataloader = dict(batch_size=4, num_workers=1, dataset=data)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=data)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator
