# BitFit, all biases of CLIP, in place of HyperCLIP's blocks,
# with the settings of segmentation.
_base_ = ["./hyperclip-det-vitb16_8xb8-3e_coco48-17.py"]
model = dict(adapter=None, tune="bias")
