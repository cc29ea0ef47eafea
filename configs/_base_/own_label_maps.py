# Your own images with label maps, from the features of ImageNet that ship: EfficientNet-Lite0, and
# one linear layer on its maps of four strides, resized to stride 4. The layer begins as the
# logistic regression on the features of the patches, and all else learns from there. The batch
# norms keep ImageNet's statistics. Head and rate are those of docs/studies/photos.md.
_base_ = [
    "./datasets/own_segmentation.py",
    "./schedules/own_adamw_4k.py",
    "./seg_runtime.py",
]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.segmentation",
        "hypvision.openmmlab.patch_probe",
    ]
)
custom_hooks = [dict(type="PatchProbeHook")]
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[127.5, 127.5, 127.5],
        std=[127.5, 127.5, 127.5],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(
        type="TimmBackbone",
        model_name="tf_efficientnet_lite0",
        checkpoint_path="zoo:tf_efficientnet_lite0.imagenet",
        out_indices=(1, 2, 3, 4),
        norm_eval=True,
    ),
    decode_head=dict(
        type="FCNHead",
        in_channels=[24, 40, 112, 320],
        in_index=[0, 1, 2, 3],
        input_transform="resize_concat",
        channels=496,  # all of them
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.0,
        num_classes=150,
        align_corners=False,
        loss_decode=dict(
            type="CrossEntropyLoss", use_sigmoid=False, avg_non_ignore=True, loss_weight=1.0
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=200),
    dict(type="PolyLR", power=0.9, eta_min=1e-5, by_epoch=False, begin=200, end=4000),
]
