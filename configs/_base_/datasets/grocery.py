# The Grocery Store photos, 81 classes: data/grocery/images/{train,val,test}/CLASS/*.jpg, shorter side 128 pixels. The
# published validation part lacks 21 classes, so every sixth training photo (sorted) serves to choose settings; a config
# that has chosen trains on all (train_dataloader.dataset.indices = None).
data_root = "data/grocery/images"
held_out = range(0, 2640, 6)
size = 128

train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        cache=True,
        indices=sorted(set(range(2640)) - set(held_out)),
        transform=dict(input_size=size, is_training=True, scale=(0.35, 1.0), color_jitter=0.2),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    drop_last=True,
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        cache=True,
        indices=held_out,
        transform=dict(input_size=size, crop_pct=1.0),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/test",
        cache=True,
        transform=dict(input_size=size, crop_pct=1.0),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
