# Stanford Online Products: data/Stanford_Online_Products/{*_final,Ebay_train.txt,Ebay_test.txt}.
data_root = "data/Stanford_Online_Products"

train_dataloader = dict(
    batch_size=90,
    num_workers=8,
    dataset=dict(
        type="StanfordOnlineProducts",
        root=data_root,
        split="train",
        transform=dict(input_size=224, is_training=True, scale=(0.2, 1.0), color_jitter=None, interpolation="bicubic"),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=2, replace=True, short_classes="repeat"),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    dataset=dict(
        type="StanfordOnlineProducts",
        root=data_root,
        split="test",
        transform=dict(input_size=224, crop_pct=0.875, interpolation="bicubic"),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="RetrievalMetric", recall=(1, 10, 100, 1000))
test_evaluator = val_evaluator
