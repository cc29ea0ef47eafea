# Tiny-ImageNet: data/tiny-imagenet/{train,val}/WNID/*.JPEG, 200 classes of 64 x 64 pixels, written
# by hypvision data prepare tiny-imagenet. Its validation images are the test, as in the papers.
data_root = "data/tiny-imagenet"
normalisation = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

train_dataloader = dict(
    batch_size=128,
    num_workers=4,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        transform=dict(
            input_size=64,
            is_training=True,
            pad_crop=4,
            pad_mode="constant",
            color_jitter=None,
            **normalisation,
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    drop_last=True,
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=256,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/val",
        transform=dict(input_size=64, crop_pct=1.0, **normalisation),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
