# Open-vocabulary Mask R-CNN on OpenAI's ViT-B/16 with HyperCLIP's adapter: a pyramid on blocks 3,
# 5, 7 and 11, boxes and masks without classes, regions compared with texts by a trained head and by
# CLIP. Our reconstruction, README.md.
model = dict(
    type="HyperCLIPDetector",
    clip=dict(name="ViT-B-16", pretrained="openai", force_quick_gelu=True),
    adapter=dict(block=128, c_text=0.01, c_vision=0.01),
    tune="adapter",
    hooks=(3, 5, 7, 11),
    neck=dict(type="BlockPyramid", out_channels=256, scales=(4, 2, 1, 0.5), num_outs=5),
    data_preprocessor=dict(pad_mask=True, pad_size_divisor=32),
    rpn_head=dict(
        type="RPNHead",
        in_channels=256,
        feat_channels=256,
        num_convs=2,
        anchor_generator=dict(
            type="AnchorGenerator", scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64]
        ),
        bbox_coder=dict(type="DeltaXYWHBBoxCoder", target_means=[0.0] * 4, target_stds=[1.0] * 4),
        loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=True, loss_weight=1.0),
        loss_bbox=dict(type="L1Loss", loss_weight=1.0),
    ),
    roi_head=dict(
        type="OpenVocabRoIHead",
        clip_temperature=75.0,
        alpha=0.1,
        beta=0.8,
        bbox_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=7, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        bbox_head=dict(
            type="OpenVocabBBoxHead",
            in_channels=256,
            num_shared_convs=4,
            num_shared_fcs=2,
            fc_out_channels=1024,
            roi_feat_size=7,
            temperature=50.0,
            background_weight=0.6,
            bbox_coder=dict(
                type="DeltaXYWHBBoxCoder", target_means=[0.0] * 4, target_stds=[0.1, 0.1, 0.2, 0.2]
            ),
            loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
            loss_bbox=dict(type="L1Loss", loss_weight=1.0),
        ),
        mask_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=14, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        mask_head=dict(
            type="FCNMaskHead",
            num_convs=4,
            in_channels=256,
            conv_out_channels=256,
            num_classes=1,
            class_agnostic=True,
            loss_mask=dict(type="CrossEntropyLoss", use_mask=True, loss_weight=1.0),
        ),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(
                type="MaxIoUAssigner", pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3,
                match_low_quality=True, ignore_iof_thr=-1,
            ),
            sampler=dict(type="RandomSampler", num=256, pos_fraction=0.5, neg_pos_ub=-1,
            add_gt_as_proposals=False),
            allowed_border=-1, pos_weight=-1, debug=False,
        ),
        rpn_proposal=dict(nms_pre=2000, max_per_img=1000, nms=dict(type="nms", iou_threshold=0.7),
        min_bbox_size=0),
        rcnn=dict(
            assigner=dict(
                type="MaxIoUAssigner", pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.5,
                match_low_quality=True, ignore_iof_thr=-1,
            ),
            sampler=dict(type="RandomSampler", num=512, pos_fraction=0.25, neg_pos_ub=-1,
            add_gt_as_proposals=True),
            mask_size=28, pos_weight=-1, debug=False,
        ),
    ),
    test_cfg=dict(
        rpn=dict(nms_pre=1000, max_per_img=1000, nms=dict(type="nms", iou_threshold=0.7),
        min_bbox_size=0),
        rcnn=dict(
            score_thr=0.01, nms=dict(type="nms", iou_threshold=0.4), max_per_img=100,
            mask_thr_binary=0.5
        ),
    ),
)  # fmt: skip
