# PAS-20b: the same with background, by `hypvision data prepare voc20b`; the text list has the 20
# names and the 39 of Pascal Context that are not among them, which all count as background.
_base_ = ["./open_vocabulary_test.py"]
data_root = "data/voc20b"
classes = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor", "background",
]  # fmt: skip
val_dataloader = dict(dataset=dict(classes=classes, data_root=data_root))
test_dataloader = val_dataloader
