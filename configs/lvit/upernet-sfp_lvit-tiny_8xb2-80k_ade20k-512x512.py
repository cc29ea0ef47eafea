# UPerNet on ADE20K: the last map of LViT, tangent vectors at the origin, through a simple feature
# pyramid, as on DeiT. No such recipe is published. Starting weights:
# model.backbone.init_cfg = dict(type="Pretrained", checkpoint=FILE), of a classifier.
_base_ = ["../himapper/upernet-sfp_himapper-deit-tiny_8xb2-80k_ade20k-512x512.py"]
pixels = dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5])  # as the classifiers'
model = dict(
    data_preprocessor=pixels,
    backbone=dict(
        _delete_=True,
        type="TimmBackbone",
        model_name="lvit_tiny",
        img_size=512,
        out_indices=(11,),
        drop_path_rate=0.1,
    ),
)
