# ADE20K full, 847 classes, by `hypvision data prepare ade847`:
# data/ade847/{images,annotations}/validation.
_base_ = ["./open_vocabulary_test.py"]
data_root = "data/ade847"
val_dataloader = dict(
    dataset=dict(classes="ade847", data_root=data_root, ignore_index=65535, seg_map_suffix=".tif")
)
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=65535)
test_evaluator = val_evaluator
