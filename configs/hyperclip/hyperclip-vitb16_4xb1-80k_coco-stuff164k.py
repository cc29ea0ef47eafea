# HyperCLIP, ViT-B/16, trained on COCO-Stuff. Tested by hyperclip-vitb16_test-*.
_base_ = [
    "./_base_/models/hyperclip_vitb16.py",
    "./_base_/datasets/coco-stuff164k_384.py",
    "./_base_/schedules/80k_adamw_cosine.py",
    "./_base_/runtime.py",
]
model = dict(train_classes="coco171")
