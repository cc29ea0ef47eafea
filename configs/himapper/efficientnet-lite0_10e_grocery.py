# The 81 classes of groceries from ImageNet's features: EfficientNet-Lite0 without Hi-Mapper, which
# the others called *efficientnet-lite0*_grocery.py are compared with. Give the weights by
# --cfg-options model.checkpoint=FILE. The stem and the first three of seven stages rest: 2 % of the
# parameters, 40 % of the time. The new head learns ten times faster.
_base_ = ["../_base_/datasets/grocery.py", "../_base_/default_runtime.py"]
data_root = "data/grocery/images"
size = 160
view = dict(input_size=size, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
model = dict(
    type="ImageClassifier",
    checkpoint="data/efficientnet_lite0/tf_efficientnet_lite0.safetensors",
    backbone=dict(model_name="tf_efficientnet_lite0", num_classes=81),
    frozen=("conv_stem.*", "bn1.*", "blocks.[012].*"),
    channels_last=True,
    label_smoothing=0.1,
    head_init="timm",  # as it was measured; own photos begin with a probe
)
train_dataloader = dict(dataset=dict(transform=view))
val_dataloader = dict(dataset=dict(transform=view))
test_dataloader = dict(dataset=dict(transform=view))
test_evaluator = [
    dict(type="TopKAccuracy", topk=(1, 5)),
    dict(
        type="GroupAccuracy", ancestors=data_root + "/../ancestors.json", levels=("kind", "coarse")
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=1)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    paramwise_cfg=dict(lr_mult={"backbone.classifier": 10.0}),
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
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
        end=10,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=1, save_best=None))
