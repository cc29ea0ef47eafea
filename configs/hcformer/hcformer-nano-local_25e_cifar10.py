# HCFormer-nano for images of 32 pixels and few of them, in an hour of one CPU core: patches of 4 as published, with
# windows and centres for maps of 8, 4, 2 and 1 pixels; a stem of two convolutions, local convolutions, centred features
# and temperatures that let clusters be sharp from the start, narrower MLPs in the first stages, Muon.
_base_ = ["./hcformer-nano_cifar10.py"]
model = dict(
    backbone=dict(
        patch_size=4,
        stem="conv",
        local_conv=True,
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        fold=(2, 1, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        mlp_ratios=(4, 4, 4, 4),
    )
)
train_dataloader = dict(batch_size=64, num_workers=0)
train_cfg = dict(max_epochs=25, val_interval=5)
auto_scale_lr = dict(enable=False)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=1, end=25, convert_to_iter_based=True),
]
