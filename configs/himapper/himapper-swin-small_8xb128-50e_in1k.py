# As himapper-deit-tiny_8xb128-50e_in1k.py with Swin-Small.
_base_ = ["./himapper-deit-tiny_8xb128-50e_in1k.py"]
model = dict(backbone=dict(model_name="himapper_swin_small_patch4_window7_224"))
