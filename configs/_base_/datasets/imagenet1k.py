# ImageNet-1k: data/imagenet/{train,val}/WNID/*.JPEG.
data_root = "data/imagenet"

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    prefetch_factor=4,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        transform=dict(
            input_size=224,
            is_training=True,
            auto_augment="rand-m9-mstd0.5-inc1",
            interpolation="bicubic",
            re_prob=0.25,
            re_mode="pixel",
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    drop_last=True,
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/val",
        transform=dict(input_size=224, crop_pct=0.9, interpolation="bicubic"),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
