# The recipe of HIER: 180 images a step in all, mixed precision, gradients cut at 10, the backbone
# frozen at first.
train_cfg = dict(by_epoch=True, max_epochs=100, val_interval=1)
optim_wrapper = dict(
    type="AmpOptimWrapper",
    loss_scale="dynamic",
    constructor="MetricLearningParamGroups",
    optimizer=dict(type="AdamW", lr=1e-5, weight_decay=1e-2, eps=1e-4),
    paramwise_cfg=dict(neck_lr_scale=1.0, hier_lr_scale=50.0, class_lr_scale=1e4),
    clip_grad=dict(type="value", clip_value=10.0),
)
auto_scale_lr = dict(base_batch_size=180, enable=True)
param_scheduler = []
custom_hooks = [dict(type="BackboneWarmUpHook", epochs=1)]
