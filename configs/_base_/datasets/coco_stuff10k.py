# mmseg's COCO-Stuff 10k: data/coco_stuff10k/{images,annotations}/{train2014,test2014}, 171 classes.
_base_ = ["mmseg::_base_/datasets/coco-stuff10k.py"]
