# ResNet-50 of torchvision: wider crops, its own rate and schedule.
model = dict(
    backbone=dict(model_name="resnet50.tv_in1k", global_pool="avgmax"),
    neck=dict(dim=512),
    freeze_bn=True,
)
train_dataloader = dict(dataset=dict(transform=dict(scale=(0.08, 1.0))))
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=0.01))
param_scheduler = [dict(type="StepLR", by_epoch=True, step_size=5, gamma=0.5)]
