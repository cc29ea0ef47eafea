# Open-vocabulary detection offline: a small Mask R-CNN on the blocks of the small CLIP, scenes of
# 96 x 96 pixels; cross, house, pentagon and ring have no boxes in training.
# docs/studies/hyperclip.md: the other rows of the table.
_base_ = ["./_base_/models/hyperclip-det_vitb16.py", "./_base_/runtime_det.py"]
base_classes = [
    "arrow", "asterisk", "car", "crescent", "disk", "ellipse", "face", "hexagon", "square", "star",
    "tree", "triangle"
]  # fmt: skip
novel_classes = ["cross", "house", "pentagon", "ring"]
model = dict(
    clip=dict(_delete_=True, name="shapes-s8", pretrained="zoo:shapes-s8.captions"),
    adapter=dict(block=32),
    train_classes=base_classes,
    hooks=(1, 3, 5),
    neck=dict(out_channels=64, scales=(2, 1, 0.5), num_outs=3),
    data_preprocessor=dict(pad_size_divisor=16),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        num_convs=1,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16]),
    ),
    roi_head=dict(
        clip_temperature=None,
        bbox_roi_extractor=dict(out_channels=64, featmap_strides=[4, 8, 16]),
        bbox_head=dict(
            in_channels=64,
            num_shared_convs=0,
            num_shared_fcs=1,
            fc_out_channels=256,
            temperature=20.0,
        ),
        mask_roi_extractor=dict(out_channels=64, featmap_strides=[4, 8, 16]),
        mask_head=dict(num_convs=1, in_channels=64, conv_out_channels=64),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=30)),
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="OpenVocabScenesDataset",
        split="train",
        length=1500,
        which="base",
        pipeline=[dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")],
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="OpenVocabScenesDataset",
        split="val",
        length=200,
        test_mode=True,
        pipeline=[
            dict(
                type="PackDetInputs",
                meta_keys=(
                    "img_id",
                    "img_path",
                    "ori_shape",
                    "img_shape",
                    "scale_factor",
                    "instances",
                ),
            )
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type="OpenVocabCocoMetric", groups=dict(base=base_classes, novel=novel_classes)
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
