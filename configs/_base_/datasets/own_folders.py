# Your own images in class folders: data/own/{train,val}/CLASS/*, at 224 x 224 pixels; the classes
# are the folders.
data_root = "data/own"
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    pin_memory=True,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        transform=dict(
            input_size=224, is_training=True, scale=(0.25, 1.0), auto_augment="rand-m9-mstd0.5-inc1"
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
    dataset=dict(
        type="ImageFolderDataset", root=data_root + "/val", transform=dict(input_size=224)
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1,))
test_evaluator = val_evaluator
