_base_ = [
    "../_base_/models/upernet_himapper.py",
    "../_base_/datasets/ade20k.py",
    "../_base_/schedules/ade20k_adamw_upernet.py",
    "../_base_/seg_runtime.py",
]
train_dataloader = dict(batch_size=2)
model = dict(
    backbone=dict(model_name="himapper_resnet50", out_indices=(1, 2, 3, 4)),
    decode_head=dict(in_channels=[256, 512, 1024, 2048]),
    auxiliary_head=dict(in_channels=1024, in_index=2),
)
