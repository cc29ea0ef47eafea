# Your own data: data/own/{train,val}/{images,masks}; masks hold class numbers in the order of the
# list, 255 where it does not matter. Ten lines of your own that start from this file are shown in
# docs/open-vocabulary.md.
_base_ = ["./_base_/models/hyperclip_vitb16.py", "./_base_/runtime.py"]
data_root = "data/own"
classes = ["cat", "dog", "grass"]
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Load16BitAnnotations"),
    dict(type="Resize16Bit", scale=(1333, 384), keep_ratio=True, backend="pillow"),
    dict(type="RandomCrop", crop_size=(384, 384), cat_max_ratio=1.0),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Load16BitAnnotations"),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="OpenVocabSegDataset",
        classes=classes,
        data_root=data_root,
        data_prefix=dict(img_path="train/images", seg_map_path="train/masks"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabSegDataset",
        classes=classes,
        data_root=data_root,
        data_prefix=dict(img_path="val/images", seg_map_path="val/masks"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="OpenVocabIoUMetric")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=2000, val_interval=500)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-4, weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys={"clip.": dict(lr_mult=0.075)}, norm_decay_mult=0.0),
    clip_grad=dict(max_norm=0.01),
)
param_scheduler = [
    dict(type="CosineAnnealingLR", T_max=2000, eta_min=0.0, begin=0, end=2000, by_epoch=False)
]
default_hooks = dict(checkpoint=dict(interval=500))
