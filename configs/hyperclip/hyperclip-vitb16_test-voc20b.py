# Test only: hypvision test configs/hyperclip/hyperclip-vitb16_test-voc20b.py WEIGHTS
_base_ = [
    "./_base_/models/hyperclip_vitb16.py",
    "./_base_/datasets/voc20b.py",
    "./_base_/runtime.py",
]
model = dict(clip=dict(pretrained=None), test_classes="voc20b", background_from=20)
