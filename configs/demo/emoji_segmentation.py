# The second part of `make demo`: Semantic FPN on scenes of emoji on photos, from the backbone and
# neck of the detector of drawn shapes that ships.
_base_ = ["./segmentation.py"]
custom_imports = dict(
    imports=["hypvision.openmmlab", "hypvision.openmmlab.open_vocabulary.segmentation"]
)
load_from = "zoo:mask-rcnn_hcformer_nano.shapes"
data_root = "work_dirs/demo/data/masks"
model = dict(backbone=dict(init_cfg=None))
load = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", reduce_zero_label=False)]
data = dict(
    _delete_=True,
    type="OpenVocabSegDataset",
    classes=["photo", "face", "animal", "food", "vehicle"],
    data_root=data_root,
)
train_dataloader = dict(
    dataset=dict(
        data,
        data_prefix=dict(img_path="train/images", seg_map_path="train/masks"),
        pipeline=[*load, dict(type="RandomFlip", prob=0.5), dict(type="PackSegInputs")],
    )
)
val_dataloader = dict(
    dataset=dict(
        data,
        data_prefix=dict(img_path="val/images", seg_map_path="val/masks"),
        pipeline=[*load, dict(type="PackSegInputs")],
    )
)
test_dataloader = val_dataloader
