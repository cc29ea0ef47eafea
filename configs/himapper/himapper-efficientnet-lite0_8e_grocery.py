# As himapper-efficientnet-lite0_10e_grocery.py, in the time of the ten epochs without Hi-Mapper.
_base_ = ["./himapper-efficientnet-lite0_10e_grocery.py"]
train_cfg = dict(max_epochs=8)
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
