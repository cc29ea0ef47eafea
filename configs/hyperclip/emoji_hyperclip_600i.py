# 86 classes of emoji on photos, 26 of them without labels in training, on the CLIP that
# clip-emoji-scenes_900i.py trains, run that first. Only pixels of emoji count, as in PASCAL VOC
# without its background. The head has two parameters, so that the rows of the table differ by what
# of CLIP is tuned; the other rows are this config with options, see docs/studies/hyperclip.md.
_base_ = ["camvid_hyperclip_600i.py", "./_base_/datasets/emoji_scenes.py"]
data_root = "data/emoji-scenes"
model = dict(
    clip=dict(name="emoji-s16", pretrained="work_dirs/clip-emoji-scenes_900i/iter_900.pth"),
    mask_ignored=True,
    slide=192,
)
load = [dict(type="LoadImageFromFile"), dict(type="Load16BitAnnotations")]
pack = [dict(type="PackSegInputs")]
data = dict(
    _delete_=True,
    type="OpenVocabSegDataset",
    data_root=data_root,
    classes=["photo", *_base_.emoji_classes],
)
test_data = dict(data, ignore_classes=["photo"], pipeline=load + pack)
train_dataloader = dict(
    dataset=dict(
        data,
        ignore_classes=["photo", *_base_.emoji_novel],
        data_prefix=dict(img_path="known/train/images", seg_map_path="known/train/masks"),
        pipeline=[
            *load,
            dict(type="RandomCrop", crop_size=(64, 64), cat_max_ratio=1.0),
            dict(type="RandomFlip", prob=0.5),
            *pack,
        ],
    )
)
val_prefix = dict(img_path="known/val/images", seg_map_path="known/val/masks")
test_prefix = dict(img_path="test/val/images", seg_map_path="test/val/masks")
val_dataloader = dict(dataset=dict(test_data, data_prefix=val_prefix))
test_dataloader = dict(dataset=dict(test_data, data_prefix=test_prefix))
val_evaluator = dict(groups=dict(_delete_=True, base=_base_.emoji_base, novel=_base_.emoji_novel))
test_evaluator = val_evaluator
# Where studies/finetune_study.py measures, too: emoji of a style never seen, and emoji never seen.
elsewhere = {
    name: {
        "data_prefix.img_path": f"{name}/val/images",
        "data_prefix.seg_map_path": f"{name}/val/masks",
    }
    for name in ("style", "new")
}
