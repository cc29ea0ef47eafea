# PC-59: Pascal Context, 59 classes, by `hypvision data prepare pc59`:
# data/pc59/{images,annotations}/validation.
_base_ = ["./open_vocabulary_test.py"]
data_root = "data/pc59"
val_dataloader = dict(dataset=dict(classes="pc59", data_root=data_root))
test_dataloader = val_dataloader
