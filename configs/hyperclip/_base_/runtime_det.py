# What every open-vocabulary detection and panoptic run shares.
_base_ = ["../../_base_/det_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.pyramid",
        "hypvision.openmmlab.open_vocabulary.detection",
    ]
)  # fmt: skip
custom_hooks = [dict(type="DatasetClassesHook")]
