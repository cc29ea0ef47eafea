# Small MLPs of width 64 behind those of CLIP (Adapter) in place of HyperCLIP's blocks,
# with the settings of segmentation.
_base_ = ["./hyperclip-panoptic-vitb16_8xb2-50e_coco116-17.py"]
model = dict(adapter=dict(_delete_=True, type="bottleneck", width=64))
