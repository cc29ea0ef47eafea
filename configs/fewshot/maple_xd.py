# MaPLe. Cross data sets and domain generalisation: 16 shots of all classes of ImageNet.
_base_ = []  # without it mmengine does not run the import below
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(
    few_shot_config(
        "maple",
        "cross",
        root="data",
        dataset="imagenet",
        classes=1000,
        images=16000,
        total_classes=1000,
    )
)
