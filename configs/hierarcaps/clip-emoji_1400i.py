# A small CLIP from scratch on images of emoji with their names, keywords, classes and groups: what
# one CPU core does in an hour with --amp (bfloat16). It sees the emoji of the training split alone,
# and no image of the styles openmoji, fxemoji and fluent-mono, which stay for tests on unseen
# styles: the first two are of vendors that it does not know at all, the third is black line art.
# The best checkpoint is chosen on the emoji of the validation split.
_base_ = ["../_base_/default_runtime.py"]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.tasks.contrastive", "hypvision.data.emoji"]
)
classes = [
    "smiling face", "affectionate face", "face with tongue out", "face with a hand",
    "neutral or skeptical face", "sleepy face", "unwell face", "worried or sad face",
    "angry or evil face", "monster or costume face", "cat face", "heart", "emotion sign",
    "open hand", "hand with some fingers up", "pointing finger", "fist or thumb", "pair of hands",
    "body part", "person", "person making a gesture", "person in a job or role", "fantasy figure",
    "person in motion or being groomed", "person doing a sport", "couple or family",
    "human silhouette", "mammal", "bird", "reptile or dragon", "sea animal", "insect or bug",
    "flower", "plant", "fruit", "vegetable", "prepared dish", "Asian dish", "sweet or dessert",
    "drink", "tableware", "globe or map", "landscape", "building", "place of worship",
    "city scene or attraction", "land transport", "water transport", "air transport",
    "clock or timer", "sky or weather", "celebration item", "award or medal", "sports equipment",
    "game or toy", "arts and crafts item", "clothing", "loudspeaker or bell", "music or audio item",
    "musical instrument", "phone", "computer equipment", "camera or light", "book or paper",
    "money", "mail item", "writing tool", "office item", "lock or key", "tool or weapon",
    "science equipment", "medical item", "household item", "miscellaneous object",
    "public information sign", "warning sign", "arrow", "religious symbol", "zodiac sign",
    "media control button", "mathematical sign", "punctuation mark", "miscellaneous symbol",
    "keycap", "letter or word button", "geometric shape",
]  # fmt: skip
data_root = "data/emoji"
styles = ["noto", "noto-v1", "twemoji", "fluent", "fluent-flat"]
model = dict(
    type="CLIPContrast",
    clip=dict(name="emoji-s16"),
    classes=classes,
    templates="photo",
    blank_words=True,
)
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    dataset=dict(
        type="EmojiCaptions", root=data_root, split="train", styles=styles, length=2_000_000
    ),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="EmojiCaptions", root=data_root, split="val", styles=styles),
)
test_dataloader = dict(
    batch_size=100,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="EmojiCaptions", root=data_root, split="test", styles=styles),
)
val_evaluator = dict(type="ZeroShotAccuracy")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=1400, val_interval=200)
optim_wrapper = dict(
    constructor="TimmParamGroups",
    optimizer=dict(type="TimmMuon", lr=4e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.02, begin=0, end=100, by_epoch=False),
    dict(type="LinearLR", start_factor=1.0, end_factor=0.01, begin=1280, end=1400, by_epoch=False),
]
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=2), logger=dict(interval=20)
)
log_processor = dict(by_epoch=False)
