# In-Shop Clothes Retrieval: data/In-shop/{img,list_eval_partition.txt}.
_base_ = ["./retrieval.py"]
data_root = "data/In-shop"
train_dataloader = dict(dataset=dict(type="InShop", root=data_root))
val_dataloader = dict(dataset=dict(type="InShop", root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(recall=(1, 10, 20, 30))
test_evaluator = val_evaluator
