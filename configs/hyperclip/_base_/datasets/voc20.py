# PAS-20: Pascal VOC 2012, 20 classes, written by `hypvision data prepare voc20`:
# data/voc20/{images,annotations}/validation.
_base_ = ["./open_vocabulary_test.py"]
data_root = "data/voc20"
val_dataloader = dict(dataset=dict(classes="voc20", data_root=data_root))
test_dataloader = val_dataloader
