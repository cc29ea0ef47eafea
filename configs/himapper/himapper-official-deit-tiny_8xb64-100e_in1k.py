# The defaults of the released code instead of the paper's recipe: its numerics, 100 epochs, a rate
# of 1e-5 for a batch of 512, repeated augmentation, the patch embedding frozen, all parameters at
# the same rate.
_base_ = ["./himapper-deit-tiny_8xb128-50e_in1k.py"]
model = dict(freeze="patch_embed", backbone=dict(preset="official"))
train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type="RepeatAugSampler", num_repeats=3)
)
train_cfg = dict(max_epochs=100)
optim_wrapper = dict(paramwise_cfg=dict(_delete_=True), optimizer=dict(lr=1e-5, weight_decay=0.05))
auto_scale_lr = dict(base_batch_size=512)
param_scheduler = [
    dict(
        type="CosineAnnealingLR",
        eta_min=1e-6,
        by_epoch=True,
        begin=0,
        end=100,
        convert_to_iter_based=True,
    ),
]
