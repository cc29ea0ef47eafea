# The ViT of vit-micro_4e_cifar10.py, fine-tuned without Hi-Mapper: what the other runs of 150 steps
# are compared with.
_base_ = ["./vit-micro_4e_cifar10.py"]
load_from = "work_dirs/vit-micro_4e_cifar10/epoch_4.pth"
train_dataloader = dict(
    persistent_workers=True, sampler=dict(_delete_=True, type="InfiniteSampler", shuffle=True)
)
train_cfg = dict(_delete_=True, type="IterBasedTrainLoop", max_iters=150, val_interval=150)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=False, begin=0, end=15),
    dict(type="CosineAnnealingLR", eta_min_ratio=1e-2, by_epoch=False, begin=15, end=150),
]
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=150, save_best=None),
)
log_processor = dict(by_epoch=False)
