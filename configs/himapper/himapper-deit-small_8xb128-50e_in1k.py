# As himapper-deit-tiny_8xb128-50e_in1k.py with DeiT-Small.
_base_ = ["./himapper-deit-tiny_8xb128-50e_in1k.py"]
model = dict(backbone=dict(model_name="himapper_deit_small_patch16_224"))
