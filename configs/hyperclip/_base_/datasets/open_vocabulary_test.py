# Testing on a set that `hypvision data prepare NAME` wrote:
# data/NAME/{images,annotations}/validation.
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(2560, 640), keep_ratio=True, backend="pillow"),
    dict(type="Load16BitAnnotations"),
    dict(type="PackSegInputs"),
]
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabSegDataset",
        seg_map_suffix=".png",
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="OpenVocabIoUMetric", ignore_index=255)
test_evaluator = val_evaluator
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
