# CamVid with 3 of its 11 classes held out: car, pavement and tree have no labels in training (their pixels are left out
# of the loss), the test split is measured on all 11. CLIP is the one that clip-camvid_1000i.py trains, run that first;
# the head has two parameters, so that the rows of the table differ by what of CLIP is tuned. The other rows are this
# config with options, see README.md.
_base_ = ["../_base_/seg_runtime.py"]
custom_imports = dict(imports=["hypvision.mm", "hypvision.tasks", "hypvision.mm.hyperclip"])
custom_hooks = [dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")]
data_root = "data/camvid"
novel = ["car", "pavement", "tree"]
base = ["sky", "building", "pole", "road", "sign", "fence", "pedestrian", "bicyclist"]
# In the order of the labels; void is no class.
classes = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]
model = dict(
    type="HyperCLIPSegmentor",
    clip=dict(name="shapes-s8", pretrained="work_dirs/clip-camvid_1000i/iter_1000.pth"),
    adapter=dict(block=32),
    tune="hyperbolic",
    head=dict(type="similarity"),
    resolution=192,
    inference="whole",
    mask_ignored=True,
)
# Whole pictures, made square: what the crops of the pre-training look like at this size.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadWideAnnotations"),
    dict(type="Resize", scale=(192, 192), keep_ratio=False, backend="pillow"),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(192, 192), keep_ratio=False, backend="pillow"),
    dict(type="LoadWideAnnotations"),  # after Resize: measured at the size of the picture
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="OpenVocabSegDataset",
        data_root=data_root,
        data_prefix=dict(img_path="img/train", seg_map_path="ann/train"),
        classes=[*classes, "void"],
        ignore_classes=[*novel, "void"],
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabSegDataset",
        data_root=data_root,
        data_prefix=dict(img_path="img/val", seg_map_path="ann/val"),
        classes=[*classes, "void"],
        ignore_classes=["void"],
        pipeline=test_pipeline,
    ),
)
test_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabSegDataset",
        data_root=data_root,
        data_prefix=dict(img_path="img/test", seg_map_path="ann/test"),
        classes=[*classes, "void"],
        ignore_classes=["void"],
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(type="OpenVocabIoUMetric", groups=dict(base=base, novel=novel))
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=400, val_interval=400)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-2, weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys={"clip": dict(lr_mult=0.1)}, norm_decay_mult=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=20, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=380, eta_min=0.0, begin=20, end=400, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=400, save_best=None))
