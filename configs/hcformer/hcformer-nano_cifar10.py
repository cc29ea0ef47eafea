# HCFormer-nano on 32 x 32 images: patches of 2 pixels; windows and centres scaled to maps of 16, 8,
# 4 and 2 pixels, so that nothing is padded; layer scale 0.1, since a short training never leaves
# 1e-5.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcformer_nano",
        num_classes=10,
        img_size=32,
        patch_size=2,
        fold=(4, 2, 1, 1),
        prop=(2, 2, 4, 2),
        pad="minimal",
        layer_scale=0.1,
        drop_path_rate=0.05,
    ),
    label_smoothing=0.1,
)
