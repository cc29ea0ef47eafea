# Test only: hypvision test configs/hyperclip/catseg-vitl14-336_test-voc20.py WEIGHTS
_base_ = [
    "./_base_/models/hyperclip_vitl14_336.py",
    "./_base_/datasets/voc20.py",
    "./_base_/runtime.py",
]
model = dict(clip=dict(pretrained=None), adapter=None, tune="frozen")
