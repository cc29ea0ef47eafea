# Boxes of 86 classes of emoji on photos, 26 of them without boxes in training: the detector of
# shapes_hyperclip-det_600i.py on the CLIP that clip-emoji-scenes_900i.py trains, run that first.
_base_ = ["shapes_hyperclip-det_600i.py", "./_base_/datasets/emoji_scenes.py"]
data_root = "data/emoji-scenes"
model = dict(
    clip=dict(name="emoji-s16", pretrained="work_dirs/clip-emoji-scenes_900i/iter_900.pth"),
    train_classes=_base_.emoji_base,
    data_preprocessor=dict(pad_size_divisor=32),
    rpn_head=dict(anchor_generator=dict(strides=[8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(featmap_strides=[8, 16, 32]),
        mask_roi_extractor=dict(featmap_strides=[8, 16, 32]),
    ),
)
data = dict(
    _delete_=True, type="OpenVocabCocoDataset", data_root=data_root, classes=_base_.emoji_classes
)
load = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
]
keys = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances")
resize = dict(type="Resize", scale=(192, 192), keep_ratio=True)  # says the factor 1
test_data = dict(
    data, test_mode=True, pipeline=[*load, resize, dict(type="PackDetInputs", meta_keys=keys)]
)
known = dict(
    ann_file="boxes/annotations/instances_val2017.json", data_prefix=dict(img="boxes/val2017/")
)
test = dict(
    ann_file="boxes-test/annotations/instances_val2017.json",
    data_prefix=dict(img="boxes-test/val2017/"),
)
train_dataloader = dict(
    dataset=dict(
        data,
        ignore_classes=_base_.emoji_novel,
        ann_file="boxes/annotations/instances_train2017.json",
        data_prefix=dict(img="boxes/train2017/"),
        pipeline=[*load, dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")],
    )
)
val_dataloader = dict(dataset=dict(test_data, **known))
test_dataloader = dict(dataset=dict(test_data, **test))
val_evaluator = dict(groups=dict(_delete_=True, base=_base_.emoji_base, novel=_base_.emoji_novel))
test_evaluator = val_evaluator
# Where studies/finetune_study.py measures, too: emoji of a style never seen.
elsewhere = dict(
    style={
        "ann_file": "boxes-style/annotations/instances_val2017.json",
        "data_prefix.img": "boxes-style/val2017/",
    }
)
