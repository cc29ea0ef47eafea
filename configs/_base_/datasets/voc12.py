# mmseg's Pascal VOC 2012, 1,464 images for training: data/VOCdevkit/VOC2012, 21 classes.
_base_ = ["mmseg::_base_/datasets/pascal_voc12.py"]
