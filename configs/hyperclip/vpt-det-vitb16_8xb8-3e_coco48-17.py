# Visual prompt tuning, 50 tokens in each image block, in place of HyperCLIP's blocks,
# with the settings of segmentation.
_base_ = ["./hyperclip-det-vitb16_8xb8-3e_coco48-17.py"]
model = dict(adapter=dict(_delete_=True, type="vpt", tokens=50))
