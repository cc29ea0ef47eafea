# What every open-vocabulary run shares.
_base_ = ["../../_base_/seg_runtime.py"]
custom_imports = dict(imports=["hypvision.mm", "hypvision.tasks", "hypvision.mm.hyperclip"])
custom_hooks = [dict(type="DatasetClassesHook"), dict(type="TextRadiusHook")]
default_hooks = dict(checkpoint=dict(interval=5000))
