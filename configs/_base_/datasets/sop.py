# Stanford Online Products: data/Stanford_Online_Products/{*_final,Ebay_train.txt,Ebay_test.txt}.
_base_ = ["./retrieval.py"]
data_root = "data/Stanford_Online_Products"
train_dataloader = dict(dataset=dict(type="StanfordOnlineProducts", root=data_root))
val_dataloader = dict(dataset=dict(type="StanfordOnlineProducts", root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(recall=(1, 10, 100, 1000))
test_evaluator = val_evaluator
