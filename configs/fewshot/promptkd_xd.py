# PromptKD. Distilled on all training images of Caltech101, without labels.
_base_ = [
    "../_base_/datasets/caltech101_promptkd.py"
]  # first, so that mmengine reads this as plain Python
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(few_shot_config("promptkd", "cross", **_base_.distillation))
