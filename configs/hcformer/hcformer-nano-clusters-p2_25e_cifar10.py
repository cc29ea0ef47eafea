# HCFormer-nano on CIFAR-10, with the network for small data and Muon, in 2.2 hours of one CPU core:
# patches of 2, four centres for 16 pixels in the windows of stages 1 to 3, and layer scales of
# mixers that keep their first value (left to themselves some fall to near 0).
_base_ = [
    "../_base_/models/hcformer_nano_clusters.py",
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_adamw.py",
    "../_base_/default_runtime.py",
]
model = dict(backbone=dict(num_classes=10, img_size=32, patch_size=2))
train_dataloader = dict(batch_size=64, num_workers=0)
train_cfg = dict(max_epochs=25, val_interval=5)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(
    optimizer=dict(type="TimmMuon", lr=4e-3),
    paramwise_cfg=dict(lr_mult={"backbone.stages.*.layer_scale1": 0.0}),
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
        end=25,
        convert_to_iter_based=True,
    ),
]
