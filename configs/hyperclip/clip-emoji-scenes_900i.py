# A small CLIP that knows emoji in scenes: crops of scenes of emoji on photos with captions made of
# image-level tags (which of 86 classes a crop shows, all of them), 900 steps of 128 crops of 64 x
# 64 pixels from the CLIP of single emoji that ships.
_base_ = ["./_base_/clip_contrast.py", "./_base_/datasets/emoji_scenes.py"]
data_root = "data/emoji-scenes"
words = ["photo", *_base_.emoji_classes]
crops = dict(
    type="TagCaptions",
    data_root=data_root,
    classes=words,
    unnamed=["photo"],
    zoom=(0.2, 0.6),
)
known = dict(img_path="known/val/images", seg_map_path="known/val/masks")
test = dict(img_path="test/val/images", seg_map_path="test/val/masks")
model = dict(clip=dict(name="emoji-s16", pretrained="zoo:emoji-s16.captions"), classes=words)
train_dataloader = dict(
    dataset=dict(
        crops,
        data_prefix=dict(img_path="known/train/images", seg_map_path="known/train/masks"),
        length=400_000,
        jitter=0.3,
    )
)
val_dataloader = dict(dataset=dict(crops, data_prefix=known, length=1000, single=True))
test_dataloader = dict(dataset=dict(crops, data_prefix=test, length=1000, single=True))
train_cfg = dict(max_iters=900, val_interval=300)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=50, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=850, eta_min=2e-5, begin=50, end=900, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=300))
