# BitFit, all biases of CLIP, in place of HyperCLIP's blocks,
# with the settings of segmentation.
_base_ = ["./hyperclip-panoptic-vitb16_8xb2-50e_coco116-17.py"]
model = dict(adapter=None, tune="bias")
