# The features of ImageNet that ship, EfficientNet-Lite0, and a training of 12 epochs. The stem and
# the first three stages rest, which saves 40 % of the time. The head begins as the logistic
# regression on the features, and all else learns slowly from there: rates by
# docs/studies/photos.md.
_base_ = ["./default_runtime.py"]
model = dict(
    type="ImageClassifier",
    checkpoint="zoo:tf_efficientnet_lite0.imagenet",
    backbone=dict(model_name="tf_efficientnet_lite0"),
    frozen=("conv_stem.*", "bn1.*", "blocks.[012].*"),
    freeze_bn=True,
    channels_last=True,
    head_init="probe",
)
train_cfg = dict(by_epoch=True, max_epochs=12, val_interval=1)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(
        type="LinearLR",
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=1,
        end=12,
        convert_to_iter_based=True,
    ),
]
