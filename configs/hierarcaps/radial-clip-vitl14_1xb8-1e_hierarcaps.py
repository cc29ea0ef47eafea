# The same of ViT-L/14.
_base_ = ["radial-clip-vitb32_1xb8-1e_hierarcaps.py"]
model = dict(clip=dict(name="ViT-L-14"))
