# PromptKD with LatHAdapter. Distilled on all training images of Caltech101, without labels.
_base_ = []  # first, so that mmengine reads this as plain Python
from hypvision.tasks.few_shot_recipes import few_shot_config  # noqa: E402

globals().update(
    few_shot_config(
        "promptkd+lath",
        "base2new",
        root="data",
        dataset="caltech101",
        classes=100,
        images=4128,
        total_classes=100,
        host=dict(
            teacher=dict(
                clip=dict(name="ViT-L-14", pretrained="openai"),
                host=dict(name="promptsrc"),
                checkpoint="work_dirs/teacher.pth",
            )
        ),
    )
)
