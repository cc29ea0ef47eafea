# CUB-200-2011: data/CUB_200_2011/{images,images.txt,image_class_labels.txt,classes.txt}.
_base_ = ["./retrieval.py"]
data_root = "data/CUB_200_2011"
train_dataloader = dict(dataset=dict(type="CUB200", root=data_root))
val_dataloader = dict(dataset=dict(type="CUB200", root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(recall=(1, 2, 4, 8))
test_evaluator = val_evaluator
