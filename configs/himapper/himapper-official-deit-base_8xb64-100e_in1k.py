# The released code's defaults with DeiT-Base.
_base_ = ["./himapper-official-deit-tiny_8xb64-100e_in1k.py"]
model = dict(backbone=dict(model_name="himapper_deit_base_patch16_224"))
