# Which of 16 drawn shapes is in the image? A small HCFormer on 64 x 64 pixels, with sharp clusters
# (configs/hcformer/README.md): centred features, sharp temperatures, centres near their pixels.
# detection.py and segmentation.py begin with its weights.
_base_ = ["../_base_/default_runtime.py"]
data_root = "work_dirs/demo/data/imagefolder"
normalisation = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcformer_nano",
        num_classes=16,
        img_size=64,
        layers=(1, 1, 2, 1),
        mlp_ratios=(4, 4, 4, 4),
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        pad="minimal",
        stem="conv",
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        layer_scale=0.3,
    ),
    label_smoothing=0.05,
)
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/train",
        cache=True,
        transform=dict(
            input_size=64, is_training=True, pad_crop=2, color_jitter=None, **normalisation
        ),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    drop_last=True,
)
val_dataloader = dict(
    batch_size=128,
    num_workers=0,
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/val",
        cache=True,
        transform=dict(input_size=64, crop_pct=1.0, **normalisation),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = val_evaluator
train_cfg = dict(by_epoch=True, max_epochs=4, val_interval=4)
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(
        type="TimmMuon", lr=6e-3, weight_decay=0.05
    ),  # here far ahead of AdamW: 800 steps must do
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=0.05,
        by_epoch=True,
        begin=0,
        end=0.5,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=0.5,
        end=4,
        convert_to_iter_based=True,
    ),
]
