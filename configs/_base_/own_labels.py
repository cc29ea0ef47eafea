# Your own photos with any number of labels each, from the features of ImageNet that ship, at 160
# pixels: data/own/{train,val}.csv beside the images, see docs/own-data.md.
_base_ = ["./datasets/own_multi_label.py", "./own_features.py"]
view = dict(input_size=160, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
train_dataloader = dict(batch_size=16, dataset=dict(transform=view))
val_dataloader = dict(dataset=dict(transform=view))
test_dataloader = dict(dataset=dict(transform=view))
model = dict(multi_label=True)
default_hooks = dict(checkpoint=dict(save_best="mAP"))
