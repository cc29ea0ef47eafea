# Maps of four blocks, without a neck: the baseline that the paper compares with.
_base_ = [
    "../_base_/models/upernet_himapper.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_adamw_upernet.py",
    "../_base_/seg_runtime.py",
]
train_dataloader = dict(batch_size=2)
model = dict(
    backbone=dict(model_name="himapper_deit_small_patch16_224", out_indices=(2, 5, 8, 11)),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)
