# HECNN+ ResNet-18 on Mini-ImageNet: data/mini-imagenet/{train,val}/WNID/*.jpg, the same 100 classes
# in both parts. The papers give neither the size of the images nor the split: 84 pixels, the usual
# size, to which images of any size are resized before they are padded and cropped, and a split of
# your own.
_base_ = ["./hecnn-resnet18_200e_tiny-imagenet.py"]
data_root = "data/mini-imagenet"
train_dataloader = dict(dataset=dict(transform=dict(input_size=84)))
val_dataloader = dict(dataset=dict(transform=dict(input_size=84)))
test_dataloader = val_dataloader
model = dict(backbone=dict(num_classes=100, stem="imagenet"))
