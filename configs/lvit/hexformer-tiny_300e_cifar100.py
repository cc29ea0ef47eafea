# HexFormer of the size tiny on CIFAR-100 with the published recipe, whose 100 epochs pass three
# times over the images. RandAugment stands for AutoAugment of CIFAR-10, which timm does not have;
# the parameters of mixup and cutmix and the patches of 4 pixels are ours.
_base_ = ["../_base_/datasets/cifar10.py", "../_base_/default_runtime.py"]
data_root = "data/cifar100"
train_dataloader = dict(dataset=dict(transform=dict(re_prob=0.25)))
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hexformer_tiny",
        num_classes=100,
        img_size=32,
        patch_size=4,
        drop_path_rate=0.1,
    ),
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.5, switch_prob=0.5),
    label_smoothing=0.1,
)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=10)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="TimmParamGroups",
    optimizer=dict(type="RiemannianAdamW", lr=4.35e-3, weight_decay=5e-2),
)
param_scheduler = [
    dict(
        type="CosineAnnealingLR",
        eta_min=1e-6,
        by_epoch=True,
        begin=0,
        end=300,
        convert_to_iter_based=True,
    )
]
