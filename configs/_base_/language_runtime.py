# What every training of a language model shares: iterations, checkpoints, held-out loss.
_base_ = ["./default_runtime.py"]
custom_imports = dict(imports=["hypvision.tasks.language"], allow_failed_imports=False)
default_hooks = dict(
    logger=dict(type="LoggerHook", interval=10, log_metric_by_epoch=False),
    checkpoint=dict(
        _delete_=True, type="CheckpointHook", by_epoch=False, interval=100, max_keep_ckpts=2,
        save_best="bits_per_byte", rule="less",
    ),
)  # fmt: skip
custom_hooks = [dict(type="ExpertLoadHook")]
log_processor = dict(by_epoch=False)
env_cfg = dict(cudnn_benchmark=False)
