"""A few of the data sets of ``hypvision clip evaluate``, in the layouts of their authors, of the 64
emoji of ``tools/demo_data``."""

import json
import shutil

import numpy as np
from helpers.engine import ROOT
from scipy.io import savemat

EMOJI = ROOT / "tools/demo_data/emoji"
ROWS = json.loads((EMOJI / "emoji.json").read_text())
GROUPS = sorted({row["subgroup"] for row in ROWS})[:5]


def put(row, path):
    """Copy the image of an emoji."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(EMOJI / f"images/noto/{row['id']}.png", path)


def of(group):
    return [row for row in ROWS if row["subgroup"] == group]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make(root):
    """The folder of all data."""
    for number, group in enumerate(GROUPS):
        for row in of(group):
            put(row, root / f"stl10/test/{group}/{row['id']}.png")
            put(row, root / f"imagenet/images/val/n{9 - number}/{row['id']}.png")
    # in another order than that of the folders
    lines = [f"n{9 - number} {group}" for number, group in enumerate(GROUPS)]
    write(root / "imagenet/classnames.txt", "\n".join(lines))
    write(root / "imagenet/imagenet_isa.txt", "r a\nr b\na n9\na n8\nb n7\nb d\nd n6\nr n5\n")
    write(root / "stl10/classnames.txt", f"{GROUPS[1]}\ta spoken name\n")
    _captions(root)
    _choices(root)
    return root


def _captions(root):
    images, texts, flickr = [], [], []
    for number, row in enumerate(ROWS):
        put(row, root / f"coco/val2017/{number:012}.jpg")
        images.append(dict(id=number))
        for text in (row["name"], f"a drawing of {row['name']}"):
            texts.append(dict(image_id=number, caption=text))
        if number < 20:
            put(row, root / f"flickr30k/flickr30k_images/{number}.jpg")
        sentences = [dict(raw=row["name"])] * (1 + number % 2)
        split = "test" if number < 20 else "train"
        flickr.append(dict(filename=f"{number}.jpg", split=split, sentences=sentences))
    content = dict(images=[*images, dict(id=99)], annotations=texts)
    write(root / "coco/annotations/captions_val2017.json", json.dumps(content))
    write(root / "flickr30k/dataset_flickr30k.json", json.dumps(dict(images=flickr)))


def _choices(root):
    for shift, name in enumerate(SUGAR, 1):
        rows = {}
        for number, row in enumerate(ROWS[: 10 * shift]):
            wrong = ROWS[(number + shift) % len(ROWS)]["name"]
            file = f"{number:012}.jpg"
            rows[number] = dict(filename=file, caption=row["name"], negative_caption=wrong)
        if shift == 1:  # equal texts: never right, since one must be more similar
            rows[0]["negative_caption"] = rows[0]["caption"]
        write(root / f"sugarcrepe/{name}.json", json.dumps(rows))
    folder = root / "vl_checklist"
    about = 'ANNO_PATH: "data/objects.json"\nIMG_ROOT: "vg/"\nTYPE: "TUPLE_JSON"'
    write(folder / "corpus/v1/Object/Location/center/vg_obj.yaml", about)
    items = []
    for number, row in enumerate(ROWS[:4]):
        items.append([f"VG/{number}.jpg", dict(POS=[row["name"], "no"], NEG=["a car", "no"])])
        if number:
            put(row, folder / f"vg/VG/{number}.jpg")
    write(folder / "data/objects.json", json.dumps(items))


SUGAR = ("add_obj", "add_att", "replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att")


def make_lists(root):
    """Data sets whose test images are in a list of their authors."""
    for name in ("hot_dog/1", "hot_dog/2", "apple/3"):
        write(root / f"food-101/images/{name}.jpg", "")
    write(root / "food-101/meta/test.txt", "hot_dog/2\napple/3\n")
    folder = root / "CUB_200_2011"
    write(folder / "classes.txt", "1 001.Black_Bird\n2 002.Owl\n")
    write(
        folder / "images.txt", "1 001.Black_Bird/a.jpg\n2 001.Black_Bird/b.jpg\n3 002.Owl/c.jpg\n"
    )
    write(folder / "image_class_labels.txt", "1 1\n2 1\n3 2\n")
    write(folder / "train_test_split.txt", "1 1\n2 0\n3 0\n")
    write(folder / "images/001.Black_Bird/b.jpg", "")
    flowers = root / "oxford_flowers"
    write(flowers / "cat_to_name.json", json.dumps({"1": "rose", "2": "lily"}))
    write(flowers / "jpg/image_00001.jpg", "")
    savemat(flowers / "imagelabels.mat", dict(labels=np.array([[2, 1, 1, 2]])))
    savemat(flowers / "setid.mat", dict(tstid=np.array([[1, 3]])))
