# Your own photos in class folders, from the features of ImageNet that ship, at 160 pixels.
_base_ = ["./datasets/own_folders.py", "./own_features.py"]
view = dict(input_size=160, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
train_dataloader = dict(batch_size=16, dataset=dict(transform=view))
val_dataloader = dict(dataset=dict(transform=view))
test_dataloader = dict(dataset=dict(transform=view))
