# English Wikipedia, packed: data/wikipedia/{train,valid}/*.parquet with a column "text"
# (docs/data.md says where from).
data_root = "data/wikipedia"
# the paper's, 128,256 tokens; gated (configs/helm/README.md has a free one)
tokenizer = "meta-llama/Llama-3.1-8B"
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    pin_memory=True,
    dataset=dict(type="PackedText", source=data_root + "/train", tokenizer=tokenizer, length=2048),
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="default_collate"),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=2,
    pin_memory=True,
    dataset=dict(type="PackedText", source=data_root + "/valid", tokenizer=tokenizer, length=2048),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="BitsPerByte")
test_evaluator = val_evaluator
