# HCFormer-nano for small pictures and few of them, in three hours of one CPU core: centred features and temperatures
# that let clusters be sharp from the start, a stem of two convolutions, local convolutions, one window-level centre for
# four windows, narrower MLPs in the first stages, Muon.
_base_ = ["./hcformer-nano_cifar10.py"]
model = dict(
    backbone=dict(
        stem="conv",
        local_conv=True,
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        win=(2, 1, 1, 1),
        mlp_ratios=(4, 4, 4, 4),
    )
)
train_dataloader = dict(num_workers=0)
train_cfg = dict(max_epochs=30, val_interval=5)
optim_wrapper = dict(optimizer=dict(type="TimmMuon", lr=4e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=True, begin=1, end=30, convert_to_iter_based=True),
]
