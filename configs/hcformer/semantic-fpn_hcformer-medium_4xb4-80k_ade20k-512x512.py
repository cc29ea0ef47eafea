_base_ = [
    "../_base_/models/semantic_fpn_hcformer.py",
    "../_base_/datasets/ade20k_aligned.py",
    "../_base_/schedules/ade20k_adamw_80k.py",
    "../_base_/seg_runtime.py",
]
model = dict(
    backbone=dict(model_name="hcformer_medium"), neck=dict(in_channels=[64, 128, 320, 512])
)
