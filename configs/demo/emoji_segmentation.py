# The second part of `make demo`: HCFormer with Semantic FPN on scenes of emoji on photos, from the
# segmenter of streets that ships.
_base_ = ["../hcformer/semantic-fpn_hcformer-nano-clusters_600i_camvid.py"]
custom_imports = dict(
    imports=["hypvision.openmmlab", "hypvision.openmmlab.open_vocabulary.segmentation"]
)
load_from = "zoo:semantic-fpn_hcformer_nano.camvid"
data_root = "work_dirs/demo/data/masks"
model = dict(
    data_preprocessor=dict(size=(96, 96)), decode_head=dict(num_classes=5, dropout_ratio=0.0)
)
load = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", reduce_zero_label=False)]
data = dict(
    _delete_=True,
    type="OpenVocabSegDataset",
    classes=["photo", "face", "animal", "food", "vehicle"],
    data_root=data_root,
)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data,
        data_prefix=dict(img_path="train/images", seg_map_path="train/masks"),
        pipeline=[*load, dict(type="RandomFlip", prob=0.5), dict(type="PackSegInputs")],
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data,
        data_prefix=dict(img_path="val/images", seg_map_path="val/masks"),
        pipeline=[*load, dict(type="PackSegInputs")],
    ),
)
test_dataloader = val_dataloader
train_cfg = dict(max_iters=350, val_interval=350)
optim_wrapper = dict(optimizer=dict(_delete_=True, type="AdamW", lr=2e-3, weight_decay=0.02))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=50, by_epoch=False),
    dict(type="PolyLR", power=0.9, eta_min=1e-5, begin=50, end=350, by_epoch=False),
]
default_hooks = dict(checkpoint=dict(interval=175))
