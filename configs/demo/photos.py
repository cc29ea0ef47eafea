# The first part of `make demo`: 20 groceries on photos. Hi-Mapper on the EfficientNet-Lite0 of
# ImageNet that ships.
_base_ = ["../himapper/himapper-efficientnet-lite0_10e_grocery.py"]
data_root = "tools/demo_data/photos"
view = dict(input_size=128)
model = dict(
    checkpoint="zoo:tf_efficientnet_lite0.imagenet",
    backbone=dict(num_classes=20),
    freeze_bn=True,
    head_init="probe",
)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4), paramwise_cfg=dict(lr_mult={"_delete_": True, "backbone.mapper": 1.0})
)
train_dataloader = dict(batch_size=16, dataset=dict(root=data_root + "/train", transform=view))
val_dataloader = dict(dataset=dict(root=data_root + "/test", classes=None, transform=view))
test_dataloader = dict(dataset=dict(root=data_root + "/test", transform=view))
val_evaluator = dict(type="TopKAccuracy", topk=(1, 5))
test_evaluator = dict(_delete_=True, type="TopKAccuracy", topk=(1, 5))
train_cfg = dict(max_epochs=8, val_interval=8)
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
        end=8,
        convert_to_iter_based=True,
    ),
]
