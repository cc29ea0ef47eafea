# The fourth part of `make demo`: HyperCLIP on the tiny CLIP that ships; five classes of emoji have
# no label.
_base_ = ["../hyperclip/emoji-words_hyperclip_150i.py"]
data_root = "work_dirs/demo/data/words"
data = dict(data_root=data_root)
train_dataloader = dict(dataset=data)
val_dataloader = dict(dataset=data)
test_dataloader = val_dataloader
default_hooks = dict(checkpoint=dict(interval=150))
