# Visual prompt tuning, 50 tokens in each image block, in place of HyperCLIP's blocks,
# with the settings of segmentation.
_base_ = ["./hyperclip-panoptic-vitb16_8xb2-50e_coco116-17.py"]
model = dict(adapter=dict(_delete_=True, type="vpt", tokens=50))
