# Open-vocabulary panoptic segmentation on COCO: 116 classes in training, the 17 novel ones of
# detection held out. For the paper's setting (all 133, tested on ADE20K):
# train_dataloader.dataset.ignore_classes=[] and model.train_classes=coco133, then
# hyperclip-panoptic-vitb16_test-ade150.
_base_ = [
    "./_base_/models/hyperclip-panoptic_vitb16.py",
    "./_base_/datasets/coco-panoptic.py",
    "./_base_/schedules/panoptic_adamw_50e.py",
    "./_base_/runtime_panoptic.py",
]
model = dict(train_classes="coco116", test_classes="coco133")
