# Cars-196: data/CARS_196/{car_ims,cars_annos.mat}.
_base_ = ["./retrieval.py"]
data_root = "data/CARS_196"
train_dataloader = dict(dataset=dict(type="Cars196", root=data_root))
val_dataloader = dict(dataset=dict(type="Cars196", root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(recall=(1, 2, 4, 8))
test_evaluator = val_evaluator
