# Scenes of the 64 emoji on photos that ship, with a label for each pixel:
#   hypvision data make data/emoji-words --emoji tools/demo_data/emoji --photos
#     tools/demo_data/photos --layout masks \ --level class --size 96 --train 3000 --val 200
#     --val-emoji train
# 21 classes of emoji, 5 of which a training may leave without labels; the label 0 is the photo.
words = [
    "groceries", "smiling face", "affectionate face", "face with tongue out", "face with a hand",
    "sleepy face", "unwell face", "worried or sad face", "angry or evil face",
    "monster or costume face", "mammal", "bird", "reptile or dragon", "sea animal", "insect or bug",
    "fruit", "vegetable", "prepared dish", "sweet or dessert", "land transport", "water transport",
    "air transport",
]  # fmt: skip
novel_words = ["affectionate face", "bird", "sea animal", "fruit", "water transport"]
base_words = [word for word in words if word not in novel_words]
train_prefix = dict(img_path="train/images", seg_map_path="train/masks")
val_prefix = dict(img_path="val/images", seg_map_path="val/masks")
