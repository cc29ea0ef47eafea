# PromptSRC with LatHAdapter. Base to new: 16 shots of the base classes of Caltech101.
_base_ = []  # without it mmengine does not run the import below
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(
    few_shot_config(
        "promptsrc+lath",
        "base2new",
        root="data",
        dataset="caltech101",
        classes=50,
        images=800,
        total_classes=100,
    )
)
