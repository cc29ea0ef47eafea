# A small CLIP from scratch on scenes of one or two emoji on pale crops of photos (Grocery): the
# baseline that MERU and HyCoCLIP are compared with. It is tested on emoji that it has never seen,
# alone, by their 86 classes.
_base_ = ["../hierarcaps/clip-emoji_1400i.py"]
custom_imports = dict(
    imports=[
        "hypvision.tasks",
        "hypvision.tasks.contrastive",
        "hypvision.data.emoji",
        "hypvision.data.emoji_scenes",
    ]
)
photos_root = "data/grocery/images"
model = dict(clip=dict(geometry="sphere"))
train_dataloader = dict(
    dataset=dict(
        type="EmojiScenes",
        photos=photos_root + "/train",
        length=60_000,
        size=64,
        count=(1, 2),
        side=(0.5, 0.9),
        pale=0.5,
    ),
)
val_evaluator = dict(type="ZeroShotAccuracy", topk=(1, 5))
test_evaluator = [val_evaluator, dict(type="HierarchicalErrors")]
train_cfg = dict(max_iters=500, val_interval=250)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=100, by_epoch=False),
    dict(type="LinearLR", start_factor=1.0, end_factor=0.01, begin=400, end=500, by_epoch=False),
]
optim_wrapper = dict(optimizer=dict(lr=2e-3))  # the better of two for CLIP and HyCoCLIP
default_hooks = dict(logger=dict(log_metric_by_epoch=False))
