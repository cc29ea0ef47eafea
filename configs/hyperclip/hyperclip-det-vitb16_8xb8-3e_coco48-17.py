# Open-vocabulary detection on COCO: 48 base classes in training, 17 novel ones at test. README.md
# says what of it is the paper's (little) and what is ours.
_base_ = [
    "./_base_/models/hyperclip-det_vitb16.py",
    "./_base_/datasets/coco48-17.py",
    "./_base_/schedules/det_adamw_3e.py",
    "./_base_/runtime_det.py",
]
model = dict(train_classes="coco48", test_classes="coco65")
default_hooks = dict(checkpoint=dict(save_best="ov/AP50_novel"))
