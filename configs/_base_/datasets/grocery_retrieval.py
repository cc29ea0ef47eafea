# Grocery Store for retrieval: classes of even labels (the authors' numbers) for training, of odd
# ones for test, where test photos search among training photos. Photos of one part come in series:
# among each other ImageNet's features alone find the class 98 times in a hundred. Files as in
# grocery.py, and data/grocery/ancestors.json, {"CLASS": ["KIND", "COARSE CLASS"]}. Settings are
# chosen with the classes `fit` for training and test photos of `held`, which no test looks at.
data_root = "data/grocery"
fit = (
    "Golden-Delicious", "Royal-Gala", "Lemon", "Galia-Melon", "Orange", "Anjou", "Plum",
    "Bravo-Apple-Juice", "God-Morgon-Orange-Red-Grapefruit-Juice", "Tropicana-Juice-Smooth",
    "Arla-Medium-Fat-Milk", "Oatly-Natural-Oatghurt", "Arla-Sour-Milk", "Alpro-Shelf-Soy-Milk",
    "Valio-Vanilla-Yoghurt", "Aubergine", "Garlic", "Yellow-Onion", "Yellow-Bell-Pepper",
    "Red-Beet", "Zucchini"
)  # fmt: skip
held = (
    "Pink-Lady", "Banana", "Mango", "Watermelon", "Passion-Fruit", "Kaiser", "Red-Grapefruit",
    "God-Morgon-Apple-Juice", "Tropicana-Apple-Juice", "Arla-Ecological-Medium-Fat-Milk",
    "Garant-Ecological-Medium-Fat-Milk", "Arla-Ecological-Sour-Cream", "Alpro-Vanilla-Soyghurt",
    "Arla-Natural-Mild-Low-Fat-Yoghurt", "Yoggi-Vanilla-Yoghurt", "Carrots", "Leek",
    "Orange-Bell-Pepper", "Solid-Potato", "Regular-Tomato"
)  # fmt: skip
unseen = (
    "Granny-Smith", "Red-Delicious", "Avocado", "Kiwi", "Lime", "Cantaloupe", "Honeydew-Melon",
    "Nectarine", "Papaya", "Peach", "Conference", "Pineapple", "Pomegranate", "Satsumas",
    "Bravo-Orange-Juice", "God-Morgon-Orange-Juice", "God-Morgon-Red-Grapefruit-Juice",
    "Tropicana-Golden-Grapefruit", "Tropicana-Mandarin-Morning", "Arla-Lactose-Medium-Fat-Milk",
    "Arla-Standard-Milk", "Garant-Ecological-Standard-Milk", "Oatly-Oat-Milk", "Arla-Sour-Cream",
    "Alpro-Blueberry-Soyghurt", "Alpro-Fresh-Soy-Milk", "Arla-Mild-Vanilla-Yoghurt",
    "Arla-Natural-Yoghurt", "Yoggi-Strawberry-Yoghurt", "Asparagus", "Cabbage", "Cucumber",
    "Ginger", "Brown-Cap-Mushroom", "Green-Bell-Pepper", "Red-Bell-Pepper", "Floury-Potato",
    "Sweet-Potato", "Beef-Tomato", "Vine-Tomato"
)  # fmt: skip
view = dict(input_size=160, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/images/train",
        classes=fit + held,
        ancestors=data_root + "/ancestors.json",
        cache=True,
        transform=dict(is_training=True, scale=(0.35, 1.0), color_jitter=0.2, **view),
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    batch_sampler=dict(type="MPerClassBatchSampler", m=4),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(
        type="RetrievalFolder",
        root=data_root + "/images/test",
        gallery=data_root + "/images/train",
        classes=unseen,
        ancestors=data_root + "/ancestors.json",
        cache=True,
        transform=dict(crop_pct=1.0, **view),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="default_collate"),
    pin_memory=True,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="RetrievalMetric", recall=(1, 2, 4, 8))
test_evaluator = val_evaluator
