# CLIP-Adapter. 16 shots of all classes of Caltech101.
_base_ = []  # without it mmengine does not run the import below
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(
    few_shot_config(
        "clip-adapter",
        "shots",
        root="data",
        dataset="caltech101",
        classes=100,
        images=1600,
        total_classes=100,
    )
)
