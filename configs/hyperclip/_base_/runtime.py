# What every open-vocabulary run shares.
_base_ = ["../../_base_/seg_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.openmmlab",
        "hypvision.tasks",
        "hypvision.openmmlab.open_vocabulary.segmentation",
    ]
)
custom_hooks = [dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")]
default_hooks = dict(checkpoint=dict(interval=5000))
