# Visual prompt tuning, 50 tokens in each image block, in place of HyperCLIP's blocks, otherwise as hyperclip-vitb16_4xb1-80k_coco-stuff164k.py; the paper compares with
# it, but gives no settings.
_base_ = ["./hyperclip-vitb16_4xb1-80k_coco-stuff164k.py"]
model = dict(adapter=dict(_delete_=True, type="vpt", tokens=50))
