# HCFormer-nano for small images and few of them: a stem of convolutions, local convolutions, centred features and
# temperatures that let clusters be sharp from the start, narrower MLPs in the first stages. A config sets num_classes,
# img_size, patch_size, and windows and centres (fold, prop, win) for the maps that these give.
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcformer_nano",
        stem="conv",
        local_conv=True,
        center=True,
        alpha=3.0,
        window_alpha=4.0,
        mlp_ratios=(4, 4, 4, 4),
        pad="minimal",
        layer_scale=0.1,
        drop_path_rate=0.05,
    ),
    label_smoothing=0.1,
)
