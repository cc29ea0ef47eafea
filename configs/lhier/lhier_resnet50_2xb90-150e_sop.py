_base_ = [
    "../_base_/datasets/sop.py",
    "../_base_/models/lhier.py",
    "../_base_/schedules/lhier_adamw.py",
    "../_base_/retrieval_runtime.py",
]
model = dict(
    backbone=dict(model_name="resnet50.tv_in1k", global_pool="avgmax"),
    neck=dict(dim=512),
    num_classes=11318,
    freeze_bn=True,
)
train_dataloader = dict(dataset=dict(transform=dict(scale=(0.08, 1.0))))
optim_wrapper = dict(optimizer=dict(lr=0.0006, weight_decay=0.0001))
train_cfg = dict(max_epochs=150)
param_scheduler = [dict(type="StepLR", by_epoch=True, step_size=25, gamma=0.3)]
custom_hooks = [dict(type="BackboneWarmUpHook", epochs=5)]
