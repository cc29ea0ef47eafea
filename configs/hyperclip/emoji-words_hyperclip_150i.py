# HyperCLIP on the text tower of the tiny CLIP of clip-emoji-words_2000i.py, which ships: scenes of
# emoji on photos with a label for each pixel, but for five classes, which have no label in
# training. The head has two parameters. The last part of `make demo` is this training on fewer
# scenes.
_base_ = ["camvid_hyperclip_600i.py", "./_base_/datasets/emoji_words.py"]
data_root = "data/emoji-words"
model = dict(
    clip=dict(name="emoji-t8", pretrained="zoo:emoji-t8.scenes"),
    adapter=dict(vision=False),
    templates="photo",
    mask_ignored=True,
    slide=160,
)
load = [dict(type="LoadImageFromFile"), dict(type="Load16BitAnnotations")]
pack = [dict(type="PackSegInputs")]
data = dict(_delete_=True, type="OpenVocabSegDataset", data_root=data_root, classes=_base_.words)
train_pipeline = [
    *load,
    dict(
        type="RandomResize",
        scale=(160, 160),
        ratio_range=(0.75, 1.5),
        resize_type="Resize",
        backend="pillow",
    ),
    dict(type="RandomCrop", crop_size=(64, 64), cat_max_ratio=1.0),
    dict(type="RandomFlip", prob=0.5),
    *pack,
]
train_dataloader = dict(
    dataset=dict(
        data,
        ignore_classes=_base_.novel_words,
        data_prefix=_base_.train_prefix,
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(dataset=dict(data, data_prefix=_base_.val_prefix, pipeline=load + pack))
test_dataloader = val_dataloader
val_evaluator = dict(groups=dict(_delete_=True, base=_base_.base_words, novel=_base_.novel_words))
test_evaluator = val_evaluator
train_cfg = dict(max_iters=150, val_interval=150)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=20, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=130, eta_min=0.0, begin=20, end=150, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=150))
