# HCNN ResNet-18, 3 epochs of CIFAR-10, small enough for one CPU core: half of the channels, and the
# stem of stride 4, with which the maps begin with 8 x 8 pixels in place of 32 x 32.
_base_ = [
    "../_base_/datasets/cifar10.py",
    "../_base_/schedules/cifar10_rsgd_3e.py",
    "../_base_/default_runtime.py",
]
custom_imports = dict(
    imports=["hypvision.tasks", "hypvision.data.image_folder"],
    allow_failed_imports=False,
)
custom_hooks = [dict(type="CurvatureHook")]
# crops, mirrored views, and timm's colour jitter of 0.4, which the papers do not have
train_dataloader = dict(dataset=dict(transform=dict(auto_augment=None, re_prob=0.0)))
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="hcnn_resnet18", num_classes=10, stem="imagenet", widths=(32, 64, 128, 256)
    ),
)
val_evaluator = [dict(type="TopKAccuracy", topk=(1, 5)), dict(type="CalibrationError")]
test_evaluator = val_evaluator
