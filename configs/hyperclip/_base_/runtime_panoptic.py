# What every open-vocabulary panoptic run shares; the best checkpoint is told by PQ.
_base_ = ["./runtime_det.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.pyramid",
        "hypvision.openmmlab.open_vocabulary.panoptic",
    ]
)  # fmt: skip
default_hooks = dict(checkpoint=dict(save_best="ov/PQ"))
