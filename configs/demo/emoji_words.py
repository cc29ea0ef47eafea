# The fourth part of `make demo`: HyperCLIP on the CLIP of emoji that ships, which has seen emoji alone on white paper. It
# is tuned on scenes of emoji on photos in which every fourth emoji has no label (its pixels do not count).
_base_ = ["../hyperclip/shapes_hyperclip_450i.py"]
custom_imports = dict(
    imports=["hypvision.openmmlab", "hypvision.tasks", "hypvision.openmmlab.open_vocabulary.segmentation"]
)
data_root = "work_dirs/demo/data/words"
classes = data_root + "/classes.txt"
novel = ["angry face", "robot", "penguin", "butterfly", "banana", "pizza", "bus", "bicycle"]
model = dict(
    clip=dict(name="emoji-s16", pretrained="zoo:emoji-s16.captions"),
    templates="photo",
    resolution=64,
    crop=64,
    slide=192,
    inference="slide",
    mask_ignored=True,
)
# Windows of a third of the sides: about an emoji each, as CLIP knows them.
size = dict(type="Resize", scale=(192, 192), keep_ratio=False, backend="pillow")
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Load16BitAnnotations"),
    size,
    dict(type="RandomCrop", crop_size=(64, 64), cat_max_ratio=1.0),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    size,
    dict(type="Load16BitAnnotations"),  # after Resize: measured at the size of the image
    dict(type="PackSegInputs"),
]
data = dict(_delete_=True, type="OpenVocabSegDataset", classes=classes, data_root=data_root)
train_dataloader = dict(
    batch_size=16,
    dataset=dict(
        data,
        data_prefix=dict(img_path="train/images", seg_map_path="train/masks"),
        ignore_classes=novel,
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        data,
        data_prefix=dict(img_path="val/images", seg_map_path="val/masks"),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type="OpenVocabIoUMetric", groups=dict(novel=novel))
test_evaluator = val_evaluator
train_cfg = dict(max_iters=300, val_interval=300)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=20, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=280, eta_min=0.0, begin=20, end=300, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=150))
