# CIFAR-10 for retrieval: 6 classes for training, 4 others for test. Files as in cifar10.py.
data_root = "data/cifar10"
normalisation = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
ancestors = dict(
    airplane=("vehicle",),
    automobile=("vehicle",),
    bird=("animal",),
    cat=("animal",),
    deer=("animal",),
    dog=("animal",),
    frog=("animal",),
    horse=("animal",),
    ship=("vehicle",),
    truck=("vehicle",),
)

train_dataloader = dict(
    batch_size=96,
    num_workers=1,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/train",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog"),
        ancestors=ancestors,
        cache=True,
        transform=dict(
            input_size=32,
            is_training=True,
            pad_crop=4,
            color_jitter=None,
            interpolation="bilinear",
            **normalisation,
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=16),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=250,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/test",
        classes=("frog", "horse", "ship", "truck"),
        ancestors=ancestors,
        cache=True,
        transform=dict(input_size=32, crop_pct=1.0, **normalisation),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="RetrievalMetric", recall=(1, 2, 4, 8))
test_evaluator = val_evaluator
