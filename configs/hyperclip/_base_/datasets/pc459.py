# PC-459: Pascal Context, 459 classes, written by `hypvision data prepare pc459`:
# data/pc459/{images,annotations}/validation.
_base_ = ["./open_vocabulary_test.py"]
data_root = "data/pc459"
val_dataloader = dict(
    dataset=dict(classes="pc459", data_root=data_root, ignore_index=459, seg_map_suffix=".tif")
)
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=459)
test_evaluator = val_evaluator
