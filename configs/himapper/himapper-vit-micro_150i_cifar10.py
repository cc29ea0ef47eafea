# Hi-Mapper on the pretrained ViT: the steps and data of vit-micro_150i_cifar10.py, new modules at
# ten times the rate.
_base_ = ["./vit-micro_150i_cifar10.py"]
load_from = None
model = dict(
    type="HierarchyClassifier",
    checkpoint="work_dirs/vit-micro_4e_cifar10/epoch_4.pth",
    backbone=dict(model_name="himapper", backbone="vit_tiny_patch16_224"),
)
optim_wrapper = dict(paramwise_cfg=dict(lr_mult={"backbone.mapper": 10.0}))
