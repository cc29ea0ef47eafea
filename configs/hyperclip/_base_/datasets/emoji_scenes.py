# Scenes of emoji on photos with a label for each pixel, `hypvision data make`
# (docs/studies/hyperclip.md has the commands): data/emoji-scenes/{known,test,style,new}. 86 classes
# of emoji, 26 of which a training may leave without labels, about a third of each group; the label
# 0 is the photo.
emoji_classes = [
    "smiling face", "affectionate face", "face with tongue out", "face with a hand",
    "neutral or skeptical face", "sleepy face", "unwell face", "worried or sad face",
    "angry or evil face", "monster or costume face", "cat face", "heart", "emotion sign",
    "open hand", "hand with some fingers up", "pointing finger", "fist or thumb", "pair of hands",
    "body part", "person", "person making a gesture", "person in a job or role", "fantasy figure",
    "person in motion or being groomed", "person doing a sport", "couple or family",
    "human silhouette", "mammal", "bird", "reptile or dragon", "sea animal", "insect or bug",
    "flower", "plant", "fruit", "vegetable", "prepared dish", "Asian dish", "sweet or dessert",
    "drink", "tableware", "globe or map", "landscape", "building", "place of worship",
    "city scene or attraction", "land transport", "water transport", "air transport",
    "clock or timer", "sky or weather", "celebration item", "award or medal", "sports equipment",
    "game or toy", "arts and crafts item", "clothing", "loudspeaker or bell", "music or audio item",
    "musical instrument", "phone", "computer equipment", "camera or light", "book or paper",
    "money", "mail item", "writing tool", "office item", "lock or key", "tool or weapon",
    "science equipment", "medical item", "household item", "miscellaneous object",
    "public information sign", "warning sign", "arrow", "religious symbol", "zodiac sign",
    "media control button", "mathematical sign", "punctuation mark", "miscellaneous symbol",
    "keycap", "letter or word button", "geometric shape",
]  # fmt: skip
emoji_novel = [
    "affectionate face", "neutral or skeptical face", "worried or sad face", "heart",
    "hand with some fingers up", "pair of hands", "person in a job or role", "person doing a sport",
    "mammal", "insect or bug", "fruit", "Asian dish", "globe or map", "place of worship",
    "water transport", "celebration item", "game or toy", "loudspeaker or bell",
    "computer equipment", "money", "office item", "medical item", "public information sign",
    "religious symbol", "punctuation mark", "letter or word button",
]  # fmt: skip
emoji_base = [name for name in emoji_classes if name not in emoji_novel]
