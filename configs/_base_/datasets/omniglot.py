# Drawn characters for retrieval: data/omniglot/images/CLASS/*.png, a folder for each character, and
# split.json beside it, {"train": [CLASS, ...], "test": [CLASS, ...], "ancestors": {CLASS:
# [ALPHABET]}}. Each drawing of a test character searches among the others. A mirrored character is
# another one: no flips.
data_root = "data/omniglot"
view = dict(
    input_size=64, interpolation="bilinear", mean=(0.92, 0.92, 0.92), std=(0.27, 0.27, 0.27)
)

train_dataloader = dict(
    batch_size=96,
    num_workers=0,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/images",
        classes=data_root + "/split.json:train",
        ancestors=data_root + "/split.json:ancestors",
        cache=True,
        transform=dict(is_training=True, scale=(0.6, 1.0), hflip=0.0, color_jitter=None, **view),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=4),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=256,
    num_workers=0,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/images",
        classes=data_root + "/split.json:test",
        ancestors=data_root + "/split.json:ancestors",
        cache=True,
        transform=dict(crop_pct=1.0, **view),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="RetrievalMetric", recall=(1, 2, 4, 8))
test_evaluator = val_evaluator
