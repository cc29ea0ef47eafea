# Test only: hypvision test configs/hyperclip/hyperclip-vitb16_test-pc459.py WEIGHTS
_base_ = [
    "./_base_/models/hyperclip_vitb16.py",
    "./_base_/datasets/pc459.py",
    "./_base_/runtime.py",
]
model = dict(clip=dict(pretrained=None))  # the checkpoint has the weights
