# hcformer-nano-clusters_25e_cifar10.py with clusters that stay in use: patches of 2, four centres for 16 pixels in
# every window and stage, and mixers that training cannot turn off, since their layer scales keep the first value.
_base_ = ["./hcformer-nano-clusters_25e_cifar10.py"]
model = dict(backbone=dict(patch_size=2, fold=(4, 2, 1, 1)))
optim_wrapper = dict(
    paramwise_cfg=dict(
        lr_mult={
            f"backbone.stages.{stage}.blocks.{block}.layer_scale1": 0.0
            for stage, depth in enumerate((2, 2, 6, 2))
            for block in range(depth)
        }
    )
)
