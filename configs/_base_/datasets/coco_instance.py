# mmdet's COCO: data/coco/{annotations,train2017,val2017}, 1333 x 800.
_base_ = ["mmdet::_base_/datasets/coco_instance.py"]
