# Your own images with boxes, VOC's XML, from the features of ImageNet that ship (own_boxes.py):
# data/own/{JPEGImages,Annotations}/NAME.{jpg,xml} and the lists of names
# data/own/ImageSets/Main/{train,val}.txt. Measured as COCO does (mAP over overlaps of 0.5 to 0.95).
_base_ = ["./own_boxes.py"]
voc = dict(type="CheckedVOCDataset", data_prefix=dict(_delete_=True, sub_data_root=""))
train_dataloader = dict(dataset=dict(ann_file="ImageSets/Main/train.txt", **voc))
val_dataloader = dict(dataset=dict(ann_file="ImageSets/Main/val.txt", **voc))
test_dataloader = val_dataloader
