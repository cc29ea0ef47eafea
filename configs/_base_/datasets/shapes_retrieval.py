# Drawn shapes for retrieval: an instance (a shape with a texture and a colour) is a class; those of
# 12 shapes for training, of 4 others for test, one of each kind. Make the images with
#   hypvision data make data/shapes32 --layout imagefolder --level instance --train 7680 --val 3840
#   --size 32
data_root = "data/shapes32"
normalisation = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
unseen = ("* cross", "* house", "* pentagon", "* ring")
seen = ("* arrow", "* asterisk", "* star", "* car", "* face", "* tree", "* hexagon", "* square",
"* triangle",
        "* crescent", "* disk", "* ellipse")  # fmt: skip

train_dataloader = dict(
    batch_size=96,
    num_workers=1,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/train",
        classes=seen,
        ancestors="shapes",
        cache=True,
        transform=dict(
            input_size=32, is_training=True, pad_crop=2, color_jitter=None, **normalisation
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=4),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=240,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/val",
        classes=unseen,
        ancestors="shapes",
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
