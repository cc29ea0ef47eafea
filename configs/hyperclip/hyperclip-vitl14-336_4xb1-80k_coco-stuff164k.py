# HyperCLIP, ViT-L/14@336, trained on COCO-Stuff. Tested by
# hyperclip-vitl14-336_test-*.
_base_ = [
    "./_base_/models/hyperclip_vitl14_336.py",
    "./_base_/datasets/coco-stuff164k_384.py",
    "./_base_/schedules/80k_adamw_cosine.py",
    "./_base_/runtime.py",
]
model = dict(train_classes="coco171")
