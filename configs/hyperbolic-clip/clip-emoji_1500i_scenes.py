# A small CLIP from scratch on scenes of two to four emoji on crops of photos (Grocery): the baseline that MERU and
# HyCoCLIP are compared with. It is tested on emoji that it has never seen, alone, by their 86 classes, and on scenes of
# them (retrieval.py). Fifteen hundred steps of 64 take one core about half an hour with --amp.
_base_ = ["../hierarcaps/clip-emoji_1400i.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "hypvision.data.emoji", "hypvision.data.emoji_scenes"]
)
size = 96
photos_root = "data/grocery/images"
model = dict(clip=dict(force_image_size=size, geometry="sphere"))
train_dataloader = dict(
    batch_size=64,
    dataset=dict(type="EmojiScenes", photos=photos_root + "/train", length=2_000_000, size=size),
)
val_dataloader = dict(dataset=dict(size=size))
test_dataloader = dict(dataset=dict(size=size))
val_evaluator = dict(type="ZeroShotAccuracy", topk=(1, 5))
test_evaluator = [val_evaluator, dict(type="HierarchicalErrors")]
train_cfg = dict(max_iters=1500, val_interval=500)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=100, by_epoch=False),
    dict(type="LinearLR", start_factor=1.0, end_factor=0.01, begin=1350, end=1500, by_epoch=False),
]
default_hooks = dict(logger=dict(log_metric_by_epoch=False))
