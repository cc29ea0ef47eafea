# CIFAR-10 as JPEG files in class folders: data/cifar10/{train,test}/CLASS/NNNN.jpg, 32 x 32 pixels.
data_root = "data/cifar10"
normalisation = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

train_dataloader = dict(
    batch_size=128,
    num_workers=2,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        cache=True,
        transform=dict(
            input_size=32,
            is_training=True,
            pad_crop=4,
            auto_augment="rand-m9-n1-mstd0.5-inc1",
            interpolation="bilinear",
            re_prob=0.1,
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
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/test",
        cache=True,
        transform=dict(input_size=32, crop_pct=1.0, **normalisation),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
