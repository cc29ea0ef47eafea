_base_ = [
    "../_base_/models/upernet_himapper.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_adamw_upernet.py",
    "../_base_/seg_runtime.py",
]
train_dataloader = dict(batch_size=2)
model = dict(
    backbone=dict(model_name="himapper_swin_tiny_patch4_window7_224", drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384, in_index=2),
)
train_cfg = dict(max_iters=160000, val_interval=16000)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", power=1.0, eta_min=0.0, begin=1500, end=160000, by_epoch=False),
]
