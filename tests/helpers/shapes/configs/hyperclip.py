# Open-vocabulary segmentation of drawn scenes of 96 x 96 pixels: 16 shapes and the ground, 4 shapes
# held out from training; the tiny CLIP, a head of two parameters.
_base_ = ["hypvision::_base_/seg_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.open_vocabulary.segmentation",
        "helpers.shapes.segmentation",
    ]
)
custom_hooks = [dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")]
model = dict(
    type="HyperCLIPSegmentor",
    clip=dict(name="emoji-t8"),
    adapter=dict(block=32),
    tune="adapter",
    head=dict(type="similarity"),
    resolution=96,
    inference="whole",
)
train_pipeline = [dict(type="RandomFlip", prob=0.5), dict(type="PackSegInputs")]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="ColourShapeDataset", split="train", length=1500, which="base", pipeline=train_pipeline
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="ColourShapeDataset", split="val", length=120, pipeline=[dict(type="PackSegInputs")]
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type="OpenVocabIoUMetric", groups=dict(novel=["cross", "house", "pentagon", "ring"])
)
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=450, val_interval=450)
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
    dict(type="CosineAnnealingLR", T_max=430, eta_min=0.0, begin=20, end=450, by_epoch=False),
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=450, save_best=None))
