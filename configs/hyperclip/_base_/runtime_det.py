# What every open-vocabulary detection and panoptic run shares.
_base_ = ["../../_base_/det_runtime.py"]
custom_imports = dict(
    imports=[
        "hypvision.mm", "hypvision.tasks", "hypvision.mm.pyramid", "hypvision.mm.openvocab_det",
        "hypvision.mm.openvocab_scenes",
    ]
)  # fmt: skip
custom_hooks = [dict(type="DatasetClassesHook")]
