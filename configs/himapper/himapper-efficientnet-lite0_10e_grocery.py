# Hi-Mapper on the backbone of efficientnet-lite0_10e_grocery.py, under the same recipe.
_base_ = ["./efficientnet-lite0_10e_grocery.py"]
model = dict(
    type="HierarchyClassifier",
    backbone=dict(model_name="himapper_tf_efficientnet_lite0"),
    frozen=("trunk.conv_stem.*", "trunk.bn1.*", "trunk.blocks.[012].*"),
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        lr_mult={"_delete_": True, "backbone.trunk.classifier": 10.0, "backbone.mapper": 1.0}
    )
)
