# PromptKD with LatHAdapter. Distilled on all training images of Caltech101, without labels.
_base_ = [
    "../_base_/datasets/caltech101_promptkd.py"
]  # without it mmengine does not run the import below
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(few_shot_config("promptkd+lath", "cross", **_base_.distillation))
