# Radial tuning of CLIP's text tower as published (Alper and Averbuch-Elor, ECCV 2024): AdamW at a
# constant rate of 1e-7 on every tensor of the tower, weight decay on all, no clipping, one epoch of
# HierarCaps' training chains in batches of 8.
_base_ = ["../_base_/default_runtime.py"]
custom_imports = dict(imports=["hypvision.tasks.radial"])
data_root = "data/hierarcaps"
model = dict(
    type="RadialTuning",
    clip=dict(name="ViT-B-32", pretrained="openai"),
    loss=dict(type="RadialLoss"),
    root="text",
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="TextChains", source=f"{data_root}/hierarcaps_train.csv.gz"),
)
train_cfg = dict(by_epoch=True, max_epochs=1)
val_cfg = None
test_cfg = None
# All in one group: the published code makes no exception for norms, biases and embeddings.
optim_wrapper = dict(
    optimizer=dict(
        type="AdamW", lr=1e-7, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True
    )
)
custom_hooks = [dict(type="FrozenTextsHook")]
default_hooks = dict(checkpoint=dict(interval=1, save_best=None))
