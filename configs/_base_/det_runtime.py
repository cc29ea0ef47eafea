# What every detection run shares: logging, checkpoints, drawings.
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.datasets.detection",
        "hypvision.openmmlab.datasets.yolo",
        "hypvision.openmmlab.mask_head",
    ]
)
default_scope = "mmdet"

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(
        type="CheckpointHook",
        interval=1,
        max_keep_ckpts=2,
        save_best="coco/bbox_mAP",
        rule="greater",
    ),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    visualization=dict(type="DetVisualizationHook"),
)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # the engine takes gloo where there is no GPU
)
vis_backends = [dict(type="LocalVisBackend"), dict(type="TensorboardVisBackend")]
visualizer = dict(type="DetLocalVisualizer", vis_backends=vis_backends, name="visualizer")
log_processor = dict(type="LogProcessor", window_size=50, by_epoch=True)
log_level = "INFO"
randomness = dict(seed=0)
load_from = None
resume = False
