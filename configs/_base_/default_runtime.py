# What every classification run shares: logging, checkpoints, seed.
custom_imports = dict(
    imports=[
        "hypvision.tasks",
        "hypvision.data.image_folder",
        "hypvision.data.multi_label",
        "hypvision.data.samplers",
    ],
    allow_failed_imports=False,
)
default_scope = "mmengine"

default_hooks = dict(
    runtime_info=dict(type="RuntimeInfoHook"),
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(
        type="CheckpointHook", interval=1, max_keep_ckpts=2, save_best="top1", rule="greater"
    ),
    sampler_seed=dict(type="DistSamplerSeedHook"),
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # the engine takes gloo where there is no GPU
)
vis_backends = [dict(type="LocalVisBackend"), dict(type="TensorboardVisBackend")]
visualizer = dict(type="Visualizer", vis_backends=vis_backends)
log_processor = dict(window_size=20)
log_level = "INFO"
randomness = dict(seed=0)
load_from = None
resume = False

val_cfg = dict()
test_cfg = dict()
