# mmseg's ADE20K: data/ade/ADEChallengeData2016/{images,annotations}/{training,validation}, 512 x
# 512 crops.
_base_ = ["mmseg::_base_/datasets/ade20k.py"]
