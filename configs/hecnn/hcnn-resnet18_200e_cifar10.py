# HCNN ResNet-18 with the recipe of the papers.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_rsgd_200e.py",
    "../_base_/default_runtime.py",
]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.data.image_folder"],
    allow_failed_imports=False,
)
custom_hooks = [dict(type="CurvatureHook")]
# data of the papers: crops and mirrored views alone, and their mean and deviation of the colours
normalisation = dict(mean=(0.5074, 0.4867, 0.4411), std=(0.267, 0.256, 0.276))
train_dataloader = dict(
    dataset=dict(
        transform=dict(
            pad_mode="constant", auto_augment=None, color_jitter=None, re_prob=0.0, **normalisation
        )
    )
)
val_dataloader = dict(dataset=dict(transform=normalisation))
test_dataloader = val_dataloader
model = dict(type="ImageClassifier", backbone=dict(model_name="hcnn_resnet18", num_classes=10))
val_evaluator = [dict(type="TopKAccuracy", topk=(1, 5)), dict(type="CalibrationError")]
test_evaluator = val_evaluator
