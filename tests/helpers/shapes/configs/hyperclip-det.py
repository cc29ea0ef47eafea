# The detector of emoji_hyperclip-det_600i.py on drawn scenes of 96 x 96 pixels; cross, house,
# pentagon and ring have no boxes in training.
_base_ = ["hypvision::hyperclip/emoji_hyperclip-det_600i.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.pyramid",
        "hypvision.openmmlab.open_vocabulary.detection",
        "helpers.shapes.detection",
    ]
)
base_classes = [
    "arrow", "asterisk", "car", "crescent", "disk", "ellipse", "face", "hexagon", "square", "star",
    "tree", "triangle"
]  # fmt: skip
novel_classes = ["cross", "house", "pentagon", "ring"]
model = dict(
    clip=dict(_delete_=True, name="emoji-t8"),
    train_classes=base_classes,
    hooks=(0, 1, 3),
    data_preprocessor=dict(pad_size_divisor=16),
    rpn_head=dict(anchor_generator=dict(strides=[4, 8, 16])),
    roi_head=dict(
        bbox_roi_extractor=dict(featmap_strides=[4, 8, 16]),
        mask_roi_extractor=dict(featmap_strides=[4, 8, 16]),
    ),
)
train_dataloader = dict(
    _delete_=True,
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="OpenVocabScenesDataset",
        split="train",
        length=1500,
        which="base",
        pipeline=[dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")],
    ),
)
val_dataloader = dict(
    _delete_=True,
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabScenesDataset",
        split="val",
        length=200,
        test_mode=True,
        pipeline=[
            dict(
                type="PackDetInputs",
                meta_keys=(
                    "img_id",
                    "img_path",
                    "ori_shape",
                    "img_shape",
                    "scale_factor",
                    "instances",
                ),
            )
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(groups=dict(_delete_=True, base=base_classes, novel=novel_classes))
test_evaluator = val_evaluator
