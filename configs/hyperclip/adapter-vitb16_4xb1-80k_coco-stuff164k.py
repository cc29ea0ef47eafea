# Small MLPs of width 64 behind those of CLIP (Adapter) in place of HyperCLIP's blocks: a rival of
# the paper, which gives no settings of it. Otherwise as
# hyperclip-vitb16_4xb1-80k_coco-stuff164k.py.
_base_ = ["./hyperclip-vitb16_4xb1-80k_coco-stuff164k.py"]
model = dict(adapter=dict(_delete_=True, type="bottleneck", width=64))
