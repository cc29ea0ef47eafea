# Open-vocabulary detection on one CPU core: boxes of 86 classes of emoji on photos, 26 of them
# without boxes in training. A small Mask R-CNN on the blocks of the CLIP that
# clip-emoji-scenes_900i.py trains, run that first. docs/studies/hyperclip.md: the other rows of the
# table.
_base_ = [
    "./_base_/models/hyperclip-det_vitb16.py",
    "./_base_/runtime_det.py",
    "./_base_/datasets/emoji_scenes.py",
]
data_root = "data/emoji-scenes"
model = dict(
    clip=dict(
        _delete_=True,
        name="emoji-s16",
        pretrained="work_dirs/clip-emoji-scenes_900i/iter_900.pth",
    ),
    adapter=dict(block=32),
    train_classes=_base_.emoji_base,
    hooks=(1, 3, 5),
    neck=dict(out_channels=64, scales=(2, 1, 0.5), num_outs=3),
    data_preprocessor=dict(pad_size_divisor=32),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        num_convs=1,
        anchor_generator=dict(scales=[4], strides=[8, 16, 32]),
    ),
    roi_head=dict(
        clip_temperature=None,
        bbox_roi_extractor=dict(out_channels=64, featmap_strides=[8, 16, 32]),
        bbox_head=dict(
            in_channels=64,
            num_shared_convs=0,
            num_shared_fcs=1,
            fc_out_channels=256,
            temperature=20.0,
        ),
        mask_roi_extractor=dict(out_channels=64, featmap_strides=[8, 16, 32]),
        mask_head=dict(num_convs=1, in_channels=64, conv_out_channels=64),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=30)),
)
data = dict(type="OpenVocabCocoDataset", data_root=data_root, classes=_base_.emoji_classes)
load = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
]
keys = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances")
resize = dict(type="Resize", scale=(192, 192), keep_ratio=True)  # says the factor 1
test_data = dict(
    data, test_mode=True, pipeline=[*load, resize, dict(type="PackDetInputs", meta_keys=keys)]
)
known = dict(
    ann_file="boxes/annotations/instances_val2017.json", data_prefix=dict(img="boxes/val2017/")
)
test = dict(
    ann_file="boxes-test/annotations/instances_val2017.json",
    data_prefix=dict(img="boxes-test/val2017/"),
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        data,
        ignore_classes=_base_.emoji_novel,
        ann_file="boxes/annotations/instances_train2017.json",
        data_prefix=dict(img="boxes/train2017/"),
        pipeline=[*load, dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")],
    ),
)
loader = dict(batch_size=8, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False))
val_dataloader = dict(loader, dataset=dict(test_data, **known))
test_dataloader = dict(loader, dataset=dict(test_data, **test))
val_evaluator = dict(
    type="OpenVocabCocoMetric", groups=dict(base=_base_.emoji_base, novel=_base_.emoji_novel)
)
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=600, val_interval=600)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=1e-2),
    paramwise_cfg=dict(
        custom_keys={"clip.": dict(lr_mult=1.0, decay_mult=0.0)}, norm_decay_mult=0.0
    ),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, begin=0, end=50, by_epoch=False),
    dict(type="CosineAnnealingLR", T_max=550, eta_min=0.0, begin=50, end=600, by_epoch=False),
]
default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(by_epoch=False, interval=600, save_best=None)
)
log_processor = dict(by_epoch=False)
# Where studies/finetune_study.py measures, too: emoji of a style never seen.
elsewhere = dict(
    style={
        "ann_file": "boxes-style/annotations/instances_val2017.json",
        "data_prefix.img": "boxes-style/val2017/",
    }
)
