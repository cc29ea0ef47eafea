# Your own images with any number of labels each: data/own/{train,val}.csv beside the images, see
# docs/own-data.md.
_base_ = ["./own_folders.py"]
data_root = "data/own"
train_dataloader = dict(
    dataset=dict(type="MultiLabelDataset", root=data_root, ann_file=data_root + "/train.csv")
)
val_dataloader = dict(
    dataset=dict(
        type="MultiLabelDataset",
        root=data_root,
        ann_file=data_root + "/val.csv",
        classes=data_root + "/train.csv",
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type="MultiLabelAP")
test_evaluator = val_evaluator
