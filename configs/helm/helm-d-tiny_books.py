# Novels, byte by byte: 300 steps of 1,024 tokens, some twenty seconds on a core.
# data/text/books/{train,valid,test}.txt
_base_ = ["../_base_/language_runtime.py"]
data_root = "data/text/books"
length = 128
model = dict(type="LanguageModel", preset="helm_d_tiny", dim=34, inter_dim=136)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(
        type="PackedText", source=data_root + "/train.txt", tokenizer="byte", length=length
    ),
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(
        type="PackedText",
        source=data_root + "/valid.txt",
        tokenizer="byte",
        length=length,
        limit=128,
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
test_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(
        type="PackedText", source=data_root + "/test.txt", tokenizer="byte", length=length
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
val_evaluator = dict(type="BitsPerByte")
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=300, val_interval=50)
optim_wrapper = dict(
    constructor="LanguageParamGroups",
    optimizer=dict(type="RiemannianAdamW", lr=3e-3, weight_decay=0.01),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=9),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.1, by_epoch=False, begin=9, end=300),
]
default_hooks = dict(checkpoint=dict(interval=100))
