# CamVid with 3 of its 11 classes held out: car, pavement and tree have no labels in training (as in
# the official loss their pixels are negative for the other classes; model.mask_ignored=True leaves
# them out), measured on all 11. CLIP is the one that clip-camvid_1000i.py trains, run that first;
# the head has two parameters, so that the rows of the table differ by what of CLIP is tuned. The
# other rows are this config with options, see docs/studies/hyperclip.md.
_base_ = ["../_base_/seg_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.open_vocabulary.segmentation",
    ]
)
custom_hooks = [dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")]
data_root = "data/camvid"
novel = ["car", "pavement", "tree"]
base = ["sky", "building", "pole", "road", "sign", "fence", "pedestrian", "bicyclist"]
# In the order of the labels; void is no class.
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
model = dict(
    type="HyperCLIPSegmentor",
    clip=dict(name="emoji-t8", pretrained="work_dirs/clip-camvid_1000i/iter_1000.pth"),
    adapter=dict(block=32),
    tune="adapter",
    head=dict(type="similarity"),
    resolution=64,
    crop=64,
    slide=256,
    inference="slide",
)
# Windows of a quarter of the image's sides (officially 384 of 640 pixels): the class token of a
# larger part would be about too many things at once, and the dense embeddings contain it.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Load16BitAnnotations"),
    dict(type="RandomResize", scale=(256, 256), ratio_range=(0.75, 1.5), keep_ratio=False,
    resize_type="Resize",
         backend="pillow"),
    dict(type="RandomCrop", crop_size=(64, 64), cat_max_ratio=1.0),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]  # fmt: skip
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(256, 256), keep_ratio=False, backend="pillow"),
    dict(type="Load16BitAnnotations"),  # after Resize: measured at the size of the image
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=16,
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
test_data = dict(img_path="img/test", seg_map_path="ann/test")
test_dataloader = dict(
    val_dataloader, dataset=dict(val_dataloader["dataset"], data_prefix=test_data)
)
val_evaluator = dict(type="OpenVocabIoUMetric", groups=dict(base=base, novel=novel))
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=600, val_interval=600)
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
    dict(type="CosineAnnealingLR", T_max=580, eta_min=0.0, begin=20, end=600, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=600, save_best=None))
