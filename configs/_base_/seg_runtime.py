# What every segmentation run shares: logging, checkpoints, drawings.
custom_imports = dict(
    imports=["hypvision.openmmlab", "hypvision.tasks", "hypvision.openmmlab.datasets.segmentation"]
)
default_scope = "mmseg"

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(
        type="CheckpointHook",
        by_epoch=False,
        interval=8000,
        max_keep_ckpts=2,
        save_best="mIoU",
        rule="greater",
    ),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="SegVisualizationHook"),
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # the engine takes gloo where there is no GPU
)
vis_backends = [dict(type="LocalVisBackend"), dict(type="TensorboardVisBackend")]
visualizer = dict(type="SegLocalVisualizer", vis_backends=vis_backends, name="visualizer")
log_processor = dict(by_epoch=False)
log_level = "INFO"
randomness = dict(seed=0)
sync_bn = "torch"  # batch statistics over all processes; without effect where there is one
tta_model = dict(type="SegTTAModel")
load_from = None
resume = False
