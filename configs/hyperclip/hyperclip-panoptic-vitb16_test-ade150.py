# Test only: hypvision test configs/hyperclip/hyperclip-panoptic-vitb16_test-ade150.py WEIGHTS, of a
# training on all 133 classes of COCO.
_base_ = [
    "./_base_/models/hyperclip-panoptic_vitb16.py",
    "./_base_/datasets/ade150-panoptic.py",
    "./_base_/runtime_panoptic.py",
]
# The checkpoint has CLIP's weights.
model = dict(clip=dict(pretrained=None), train_classes="coco133", test_classes="ade150")
