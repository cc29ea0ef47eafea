# HECNN+ ResNet-18 on Tiny-ImageNet, with the recipe of the papers.
_base_ = [
    "../_base_/datasets/tiny_imagenet.py",
    "../_base_/schedules/cifar10_rsgd_200e.py",
    "../_base_/default_runtime.py",
]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.data.image_folder"],
    allow_failed_imports=False,
)
custom_hooks = [dict(type="CurvatureHook")]
model = dict(type="ImageClassifier", backbone=dict(model_name="hecnn_resnet18", num_classes=200))
val_evaluator = [dict(type="TopKAccuracy", topk=(1, 5)), dict(type="CalibrationError")]
test_evaluator = val_evaluator
