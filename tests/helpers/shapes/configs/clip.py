# The tiny CLIP on drawn shapes and their captions.
_base_ = ["hypvision::hyperclip/_base_/clip_contrast.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "helpers.shapes.captioned"]
)
classes = [
    "arrow", "asterisk", "car", "crescent", "cross", "disk", "ellipse", "face", "hexagon", "house",
    "pentagon", "ring", "square", "star", "tree", "triangle",
]  # fmt: skip
model = dict(clip=dict(name="emoji-t8"), classes=classes)
train_dataloader = dict(dataset=dict(type="ShapeCaptions", split="train", length=200_000))
val_dataloader = dict(dataset=dict(type="ShapeCaptions", split="val", length=1000, scenes=False))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=1100, val_interval=275)
