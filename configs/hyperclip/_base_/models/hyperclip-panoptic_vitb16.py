# Open-vocabulary panoptic segmentation on OpenAI's ViT-B/16 with HyperCLIP's adapter: MaskFormer on
# a pyramid of blocks 3, 5, 7 and 11, masks compared with texts by a trained head and by CLIP. Our
# reconstruction, see README.md.
_attention = dict(embed_dims=256, num_heads=8, dropout=0.1, batch_first=True)
model = dict(
    type="HyperCLIPPanoptic",
    clip=dict(name="ViT-B-16", pretrained="openai", force_quick_gelu=True),
    adapter=dict(block=128, c_text=0.01, c_vision=0.01),
    tune="adapter",
    hooks=(3, 5, 7, 11),
    neck=dict(type="BlockPyramid", out_channels=256, scales=(4, 2, 1, 0.5), num_outs=4),
    data_preprocessor=dict(pad_size_divisor=32),
    alpha=0.4,
    beta=0.8,
    panoptic_head=dict(
        type="OpenVocabMaskFormerHead",
        in_channels=[256, 256, 256, 256],
        feat_channels=256,
        out_channels=256,
        num_queries=100,
        temperature=20.0,
        void_weight=0.1,
        pixel_decoder=dict(
            type="TransformerEncoderPixelDecoder",
            norm_cfg=dict(type="GN", num_groups=32),
            act_cfg=dict(type="ReLU"),
            encoder=dict(
                num_layers=6,
                layer_cfg=dict(
                    self_attn_cfg=_attention,
                    ffn_cfg=dict(
                        embed_dims=256,
                        feedforward_channels=2048,
                        num_fcs=2,
                        ffn_drop=0.1,
                        act_cfg=dict(type="ReLU", inplace=True),
                    ),
                ),
            ),
            positional_encoding=dict(num_feats=128, normalize=True),
        ),
        enforce_decoder_input_project=False,
        positional_encoding=dict(num_feats=128, normalize=True),
        transformer_decoder=dict(
            num_layers=6,
            layer_cfg=dict(
                self_attn_cfg=_attention,
                cross_attn_cfg=_attention,
                ffn_cfg=dict(
                    embed_dims=256,
                    feedforward_channels=2048,
                    num_fcs=2,
                    ffn_drop=0.1,
                    act_cfg=dict(type="ReLU", inplace=True),
                ),
            ),
            return_intermediate=True,
        ),
        loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0,
        reduction="mean"),
        loss_mask=dict(
            type="FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, reduction="mean",
            loss_weight=20.0
        ),
        loss_dice=dict(
            type="DiceLoss", use_sigmoid=True, activate=True, reduction="mean", naive_dice=True,
            eps=1.0, loss_weight=1.0,
        ),
    ),
    train_cfg=dict(
        assigner=dict(
            type="HungarianAssigner",
            match_costs=[
                dict(type="ClassificationCost", weight=1.0),
                dict(type="FocalLossCost", weight=20.0, binary_input=True),
                dict(type="DiceCost", weight=1.0, pred_act=True, eps=1.0),
            ],
        ),
        sampler=dict(type="MaskPseudoSampler"),
    ),
    test_cfg=dict(score_thr=0.5, overlap_thr=0.8),
)  # fmt: skip
