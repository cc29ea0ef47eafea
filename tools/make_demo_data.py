"""Make tools/demo_data, the photos and emoji that `make demo` trains on, from the two data sets
that they are part of.

python tools/make_demo_data.py GROCERY EMOJI, where GROCERY has images/{train,test}/CLASS/*.jpg and
LICENSE.txt, and EMOJI emoji.json, images/noto/ID.png and splits/classes.json (docs/data.md). The
same folders give the same files.
"""

import json
import shutil
import sys
from pathlib import Path

from PIL import Image, ImageOps

OUT = Path(__file__).parent / "demo_data"
PHOTOS = {"train": 16, "test": 8}  # of each class
SIDE = 128
QUALITY = 75
CLASSES = (  # noqa: SIM905
    "Aubergine Avocado Banana Brown-Cap-Mushroom Cabbage Carrots Cucumber Garlic Ginger "
    "Granny-Smith Kiwi Leek Lemon Orange Pineapple Pomegranate Red-Bell-Pepper Red-Delicious "
    "Vine-Tomato Watermelon"
).split()
EMOJI = {
    "face": (
        "grinning face with big eyes, beaming face with smiling eyes, rolling on the floor "
        "laughing, winking face, smiling face with heart-eyes, star-struck, face with tongue, "
        "thinking face, sleeping face, face with medical mask, cold face, hot face, loudly crying "
        "face, angry face, alien, robot"
    ),
    "animal": (
        "monkey face, wolf, cat face, tiger face, horse face, unicorn, zebra, cow face, pig face, "
        "penguin, owl, flamingo, turtle, tropical fish, crab, butterfly"
    ),
    "food": (
        "tangerine, banana, pineapple, red apple, peach, cherries, kiwi fruit, tomato, eggplant, "
        "carrot, broccoli, croissant, pretzel, pizza, french fries, birthday cake"
    ),
    "vehicle": (
        "bus, tram, ambulance, taxi, oncoming automobile, sport utility vehicle, pickup truck, "
        "motorcycle, bicycle, kick scooter, canoe, speedboat, ferry, bullet train, metro, satellite"
    ),
}
SOURCES = """\
photos/: 24 photos each of 20 classes of the Grocery Store Dataset (Marcus Klasson et al., 2019;
  github.com/marcusklasson/GroceryStoreDataset), cut to their middle square and resized to {side}
  pixels. MIT: LICENSE-photos.
emoji/images/: 64 pictures of Noto Emoji (Google LLC; github.com/googlefonts/noto-emoji), rendered
  from SVG on white at 64 pixels, with 64 colours. Apache License 2.0: LICENSE-emoji.
emoji/emoji.json: names and groups of Unicode's emoji-test by unicode-emoji-json (MIT, Copyright
  Mu-An Chiou); the four groups (face, animal, food, vehicle) are ours.
Made by tools/make_demo_data.py.
"""


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    grocery, emoji = map(Path, sys.argv[1:])
    shutil.rmtree(OUT, ignore_errors=True)
    for split, count in PHOTOS.items():
        for name in CLASSES:
            found = sorted((grocery / "images" / split / name).glob("*.jpg"))
            target = OUT / "photos" / split / name
            target.mkdir(parents=True)
            for number in range(count):
                photo = Image.open(found[number * len(found) // count]).convert("RGB")
                photo = ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.LANCZOS)
                photo.save(target / f"{number:02d}.jpg", quality=QUALITY, optimize=True)
    known = {row["name"]: row for row in json.loads((emoji / "emoji.json").read_text())}
    classnames = {
        row["subgroup"]: row["classname"]
        for row in json.loads((emoji / "splits/classes.json").read_text())
    }
    (OUT / "emoji/images/noto").mkdir(parents=True)
    rows = []
    classes = {}
    for group, names in EMOJI.items():
        for name in names.split(", "):
            row = known[name]
            rows.append(
                dict(
                    id=row["id"],
                    name=name,
                    keywords=[],
                    group=row["group"],
                    subgroup=row["subgroup"],
                )
            )
            classes[row["subgroup"]] = group
            picture = Image.open(emoji / "images/noto" / f"{row['id']}.png").convert("RGB")
            target = OUT / "emoji/images/noto" / f"{row['id']}.png"
            picture.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)
    labelled = [
        dict(label=label, classname=classnames[subgroup], subgroup=subgroup, group_name=group)
        for label, (subgroup, group) in enumerate(classes.items())
    ]
    (OUT / "emoji/splits").mkdir()
    every = [row["id"] for row in rows]
    for name, value in {
        "emoji.json": rows,
        "splits/classes.json": labelled,
        "splits/emoji_split.json": dict(train=every, val=every, test=every),
    }.items():
        (OUT / "emoji" / name).write_text(json.dumps(value, indent=0, ensure_ascii=False) + "\n")
    shutil.copyfile(grocery / "LICENSE.txt", OUT / "LICENSE-photos")
    shutil.copyfile(Path(__file__).parents[1] / "LICENSE", OUT / "LICENSE-emoji")
    (OUT / "SOURCES").write_text(SOURCES.format(side=SIDE))
    files = [path for path in OUT.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.2f} MB in {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
