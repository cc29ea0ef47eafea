# What PromptKD learns from: all training images of Caltech101, without labels, and a teacher that
# was trained before.
distillation = dict(
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
