# What the four data sets of metric learning share: two images of each of 45 classes, views of 224
# pixels. The files that build on it name the data set, its folder and the ranks at which recall is
# measured.
train_dataloader = dict(
    batch_size=90,
    num_workers=8,
    dataset=dict(
        split="train",
        transform=dict(
            input_size=224,
            is_training=True,
            scale=(0.2, 1.0),
            color_jitter=None,
            interpolation="bicubic",
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=2, replace=True, short_classes="repeat"),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        split="test",
        transform=dict(input_size=224, crop_pct=0.875, interpolation="bicubic"),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="RetrievalMetric")
test_evaluator = val_evaluator
