# As for lvit_tiny, twice as wide.
_base_ = ["./upernet-sfp_lvit-tiny_8xb2-80k_ade20k-512x512.py"]
model = dict(
    backbone=dict(model_name="lvit_small"),
    neck=dict(in_channels=[384], out_channels=384),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)
