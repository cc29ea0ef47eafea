# The same with frozen CLIP: what FC-CLIP does with a ConvNeXt.
_base_ = ["./hyperclip-panoptic-vitb16_8xb2-50e_coco116-17.py"]
model = dict(adapter=None, tune="frozen")
