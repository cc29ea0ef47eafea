# The released code's defaults with EfficientNet-B4, at 380 pixels; its script freezes nothing.
_base_ = ["./himapper-official-deit-tiny_8xb64-100e_in1k.py"]
model = dict(freeze="none", backbone=dict(model_name="himapper_efficientnet_b4"))
train_dataloader = dict(batch_size=32, dataset=dict(transform=dict(input_size=380)))
val_dataloader = dict(dataset=dict(transform=dict(input_size=380, crop_pct=0.922)))
test_dataloader = val_dataloader
