# What every metric-learning run shares.
_base_ = ["./default_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.tasks",
        "hypvision.tasks.metric_learning",
        "hypvision.data.retrieval",
        "hypvision.data.samplers",
    ],
    allow_failed_imports=False,
)
default_hooks = dict(
    checkpoint=dict(
        type="CheckpointHook", interval=1, max_keep_ckpts=2, save_best="recall@1", rule="greater"
    )
)
