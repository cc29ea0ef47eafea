# A small CLIP that knows the words of CamVid: crops of its training split with captions made of
# image-level tags (which of all 11 classes a crop shows), 1000 steps of 128 crops of 64 x 64 pixels
# from the tiny CLIP of emoji that ships.
_base_ = ["./_base_/clip_contrast.py"]
classes = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
data_root = "data/camvid"
model = dict(clip=dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"), classes=classes)
train_dataloader = dict(
    dataset=dict(
        type="TagCaptions",
        data_root=data_root,
        data_prefix=dict(img_path="img/train", seg_map_path="ann/train"),
        classes=classes,
        length=200_000,
        jitter=0.3,
    )
)
val_dataloader = dict(
    dataset=dict(
        type="TagCaptions",
        data_root=data_root,
        data_prefix=dict(img_path="img/val", seg_map_path="ann/val"),
        classes=classes,
        length=1000,
        single=True,
    )
)
test_dataloader = dict(
    dataset=dict(
        type="TagCaptions",
        data_root=data_root,
        data_prefix=dict(img_path="img/test", seg_map_path="ann/test"),
        classes=classes,
        length=1000,
        single=True,
    )
)
train_cfg = dict(max_iters=1000, val_interval=250)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=50, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=950, eta_min=2e-5, begin=50, end=1000, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=250))
