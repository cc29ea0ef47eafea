# The same with frozen CLIP: what F-VLM does with a ResNet.
_base_ = ["./hyperclip-det-vitb16_8xb8-3e_coco48-17.py"]
model = dict(adapter=None, tune="frozen")
