# The released code's defaults with ResNet-50, whose script freezes nothing.
_base_ = ["./himapper-official-deit-tiny_8xb64-100e_in1k.py"]
model = dict(freeze="none", backbone=dict(model_name="himapper_resnet50"))
