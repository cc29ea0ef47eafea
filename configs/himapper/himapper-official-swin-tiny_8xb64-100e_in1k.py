# The released code's defaults with Swin-Tiny.
_base_ = ["./himapper-official-deit-tiny_8xb64-100e_in1k.py"]
model = dict(backbone=dict(model_name="himapper_swin_tiny_patch4_window7_224"))
