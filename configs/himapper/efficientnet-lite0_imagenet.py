# The backbone of the configs *efficientnet-lite0*_grocery.py and of `make demo`, as Google trained
# it on ImageNet. Its test takes the groceries that ImageNet has a class for; a photo is right if
# that class is the first of the 1,000.
_base_ = ["../_base_/datasets/grocery.py", "../_base_/default_runtime.py"]
data_root = "data/grocery/images"
folders = {
    "Banana": "banana",
    "Brown-Cap-Mushroom": "mushroom",
    "Cabbage": "head cabbage",
    "Cucumber": "cucumber, cuke",
    "Granny-Smith": "Granny Smith",
    "Green-Bell-Pepper": "bell pepper",
    "Lemon": "lemon",
    "Orange": "orange",
    "Orange-Bell-Pepper": "bell pepper",
    "Pineapple": "pineapple, ananas",
    "Pomegranate": "pomegranate",
    "Red-Bell-Pepper": "bell pepper",
    "Yellow-Bell-Pepper": "bell pepper",
    "Zucchini": "zucchini, courgette",
}
model = dict(
    type="ImageClassifier",
    checkpoint="data/efficientnet_lite0/tf_efficientnet_lite0.safetensors",
    backbone=dict(model_name="tf_efficientnet_lite0", num_classes=1000),
)
test = dict(
    classes="imagenet",
    folders=folders,
    transform=dict(
        input_size=224,
        crop_pct=0.875,
        interpolation="bicubic",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    ),
)
train_dataloader = None
val_dataloader = None
val_cfg = None
val_evaluator = None
test_dataloader = dict(dataset=test)
test_evaluator = [dict(type="TopKAccuracy", topk=(1, 5))]
