# ADE20K panoptic, 150 classes, in COCO's format as mmdet's documentation prepares it:
# data/ade/ADEChallengeData2016/{images/validation,ade20k_panoptic_val{,.json}}.
data_root = "data/ade/ADEChallengeData2016/"
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadPanopticSegments"),
    dict(type="Resize", scale=(2560, 640), keep_ratio=True),
    dict(
        type="PackDetInputs",
        meta_keys=(
            "img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "panoptic_ids",
            "segments_info"
        ),
    ),
]  # fmt: skip
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabPanopticDataset",
        classes="ade150",
        data_root=data_root,
        ann_file="ade20k_panoptic_val.json",
        data_prefix=dict(img="images/validation/", seg="ade20k_panoptic_val/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="OpenVocabPanopticMetric")
test_evaluator = val_evaluator
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
