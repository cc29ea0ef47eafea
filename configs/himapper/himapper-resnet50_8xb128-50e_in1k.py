# As himapper-deit-tiny_8xb128-50e_in1k.py with ResNet-50.
_base_ = ["./himapper-deit-tiny_8xb128-50e_in1k.py"]
model = dict(backbone=dict(model_name="himapper_resnet50"))
