# Open-vocabulary panoptic segmentation: a small MaskFormer on the blocks of the tiny CLIP, drawn
# scenes of 96 x 96 pixels; pixels of cross, house, pentagon and ring have no label in training.
_base_ = [
    "hypvision::hyperclip/_base_/models/hyperclip-panoptic_vitb16.py",
    "hypvision::hyperclip/_base_/runtime_panoptic.py",
]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.pyramid",
        "hypvision.openmmlab.open_vocabulary.panoptic",
        "helpers.shapes.detection",
    ]
)
base_classes = [
    "arrow", "asterisk", "car", "crescent", "disk", "ellipse", "face", "hexagon", "square", "star",
    "tree", "triangle", "grey ground",
]  # fmt: skip
novel_classes = ["cross", "house", "pentagon", "ring"]
attention = dict(embed_dims=64, num_heads=4, dropout=0.0)
ffn = dict(embed_dims=64, feedforward_channels=256, ffn_drop=0.0)
model = dict(
    clip=dict(_delete_=True, name="emoji-t8"),
    adapter=dict(block=32),
    train_classes=base_classes,
    hooks=(0, 1, 3),
    neck=dict(out_channels=64, scales=(2, 1, 0.5), num_outs=3),
    data_preprocessor=dict(pad_size_divisor=16),
    panoptic_head=dict(
        in_channels=[64, 64, 64],
        feat_channels=64,
        out_channels=64,
        num_queries=12,
        pixel_decoder=dict(
            _delete_=True, type="PixelDecoder", norm_cfg=dict(type="GN", num_groups=8)
        ),
        positional_encoding=dict(num_feats=32),
        transformer_decoder=dict(
            num_layers=3,
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn),
        ),
    ),
    test_cfg=dict(score_thr=0.25),  # after so short a training no class is ever sure
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
        panoptic=True,
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
        panoptic=True,
        test_mode=True,
        pipeline=[
            dict(
                type="PackDetInputs",
                meta_keys=(
                    "img_id",
                    "img_path",
                    "ori_shape",
                    "img_shape",
                    "panoptic_ids",
                    "segments_info",
                ),
            )
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type="OpenVocabPanopticMetric", groups=dict(base=base_classes, novel=novel_classes)
)
test_evaluator = val_evaluator
train_cfg = dict(type="IterBasedTrainLoop", max_iters=600, val_interval=600)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=1e-2),
    paramwise_cfg=dict(
        custom_keys={
            "clip.": dict(lr_mult=1.0, decay_mult=0.0),
            "query_embed": dict(decay_mult=0.0),
        },
        norm_decay_mult=0.0,
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
