# CAT-Seg: queries and values of CLIP train in full, at 0.01 times the rate of the head. The
# baseline of HyperCLIP.
_base_ = [
    "./_base_/models/hyperclip_vitb16.py",
    "./_base_/datasets/coco-stuff164k_384.py",
    "./_base_/schedules/80k_adamw_cosine.py",
    "./_base_/runtime.py",
]
model = dict(train_classes="coco171", adapter=None, tune="attention")
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={"clip.": dict(lr_mult=0.01)}))
