# A tiny CLIP from scratch for the demo: crops of scenes of the emoji that ship, with captions of
# what they show, all classes included; 2000 steps of 128 crops of 64 x 64 pixels.
_base_ = ["./_base_/clip_contrast.py", "./_base_/datasets/emoji_words.py"]
data_root = "data/emoji-words"
crops = dict(type="TagCaptions", data_root=data_root, classes=_base_.words, zoom=(0.3, 0.7))
model = dict(clip=dict(name="emoji-t8"), classes=_base_.words, templates="photo", blank_words=True)
train_dataloader = dict(
    dataset=dict(crops, data_prefix=_base_.train_prefix, length=400_000, jitter=0.2)
)
shown = dict(
    length=1000, single=True, unnamed=["groceries"]
)  # crops that an emoji fills by more than half
val_dataloader = dict(dataset=dict(crops, data_prefix=_base_.val_prefix, **shown))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=2000, val_interval=400)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=80, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=1920, eta_min=4e-5, begin=80, end=2000, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=400))
