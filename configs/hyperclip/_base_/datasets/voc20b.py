# PAS-20b: the same with background, written by `hypvision prepare voc20b`; the text list has the 20 names and the 39
# of # Pascal Context that are not among them, which all count as background.
data_root = "data/voc20b"
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(2560, 640), keep_ratio=True, backend="pillow"),
    dict(type="LoadWideAnnotations"),
    dict(type="PackSegInputs"),
]
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabSegDataset",
        classes=[
            "aeroplane",
            "bicycle",
            "bird",
            "boat",
            "bottle",
            "bus",
            "car",
            "cat",
            "chair",
            "cow",
            "diningtable",
            "dog",
            "horse",
            "motorbike",
            "person",
            "pottedplant",
            "sheep",
            "sofa",
            "train",
            "tvmonitor",
            "background",
        ],
        seg_map_suffix=".png",
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="OpenVocabIoUMetric", ignore_index=255)
test_evaluator = val_evaluator
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
