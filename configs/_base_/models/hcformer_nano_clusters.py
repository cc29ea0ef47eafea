# HCFormer-nano for few or small images, from scratch: a stem of convolutions; centres that stay
# near the pixels they were pooled from, centred features and temperatures that let clusters be
# sharp from the start; narrower MLPs in the first stages. A config sets num_classes, img_size and
# patch_size so that the first map has about 16 pixels a side: windows (fold) and centres (prop,
# win) are those of maps of 16, 8, 4 and 2 pixels, four centres for 16 pixels.
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcformer_nano",
        stem="conv",
        fold=(4, 2, 1, 1),
        prop=(2, 2, 2, 1),
        win=(2, 1, 1, 1),
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        locality=2.0,
        mlp_ratios=(4, 4, 4, 4),
        pad="minimal",
        layer_scale=0.1,
        drop_path_rate=0.05,
    ),
    label_smoothing=0.1,
)
