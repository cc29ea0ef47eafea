"""Every reader of class names: a label has one name, a name one label, and labels are whole
numbers.

The message names the file, the label, both names and what to do; texts that differ only where CLIP
no longer reads them are warned of.
"""

import json
import pickle
import re
import sys
import types
import warnings

import pytest
import torch
from helpers.cases import each
from helpers.fewshot import bundle
from helpers.fewshot_layouts import aircraft, coop, folders, imagenet

from hypvision.clip.prompting import HOSTS, build_host
from hypvision.data.classes import load_classes, warn_of_equal_texts, whole_label
from hypvision.data.fewshot import load_split
from hypvision.data.fewshot.dataset import load_cell
from hypvision.data.fewshot.splits import class_names, folder_names
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.io.errors import HypvisionError


def rows_of(mistake):
    """Label and name of three images."""
    return {
        "none": [(0, "cat"), (1, "dog"), (1, "dog")],
        "two names": [(0, "cat"), (1, "dog"), (1, "cow")],
        "two labels": [(0, "cat"), (1, "dog"), (2, "cat")],
        "half": [(0, "cat"), (1, "dog"), (0.5, "cow")],
    }[mistake]


def class_list(root, mistake):
    """A dict of names to numbers."""
    pairs = [f'"{name}": {label}' for label, name in dict.fromkeys(rows_of(mistake))]
    (root / "names.json").write_text("{" + ", ".join(pairs) + "}")
    return lambda: load_classes(root / "names.json")


def numbered_list(root, mistake):
    """A dict of numbers to names."""
    pairs = [f'"{label}": "{name}"' for label, name in dict.fromkeys(rows_of(mistake))]
    (root / "names.json").write_text("{" + ", ".join(pairs) + "}")
    return lambda: load_classes(root / "names.json")


def split_file(root, mistake, name="mine", file="split.json"):
    coop(root, name, classes=2, train=1, val=1, test=1, size=8)
    rows = [[f"{i}.png", label, own] for i, (label, own) in enumerate(rows_of(mistake))]
    path = next(root.rglob(file))
    path.write_text(json.dumps(dict(train=rows, val=rows[:1], test=rows[:1])))
    return lambda: load_split(name, root)


def published_split(root, mistake):
    return split_file(root, mistake, "caltech101", "split_zhou_Caltech101.json")


def class_folders(root, mistake):
    """Folders with a sheet of names."""
    names = ["a", "b", "c"][: 2 if mistake == "none" else 3]
    for part in ("train", "test"):
        folders(root, f"mine/{part}", names, 1)
    lines = [f"{folder} {name}" for folder, (_, name) in zip(names, rows_of(mistake))]
    if mistake == "two names":
        lines[2] = lines[1].replace("dog", "cow")
    (root / "mine/classnames.txt").write_text("\n".join(lines))
    return lambda: load_split("mine", root)


def imagenet_names(root, mistake):
    imagenet(root, "imagenet")
    sheet = root / "imagenet/classnames.txt"
    if mistake == "two names":
        sheet.write_text(sheet.read_text() + "\nn00000002 dog")  # the folder of "bird"
    return lambda: load_split("imagenet", root)


def variants(root, mistake):
    aircraft(root)
    sheet = root / "fgvc_aircraft/variants.txt"
    if mistake == "two labels":
        sheet.write_text(sheet.read_text() + "\nA380")
    return lambda: load_split("fgvc_aircraft", root)


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


def pets(root, mistake):
    rows = [f"{name}_{i} {label if label == 0.5 else label + 1} 1 1"
            for i, (label, name) in enumerate(rows_of(mistake))]  # fmt: skip
    for part in ("trainval", "test"):
        lines(root / f"oxford_pets/annotations/{part}.txt", rows)
    return lambda: load_split("oxford_pets", root)


def actions(root, mistake):
    folder = root / "ucf101/ucfTrainTestlist"
    rows = [
        f"{label if label == 0.5 else label + 1} {name.title()}" for label, name in rows_of(mistake)
    ]
    lines(folder / "classInd.txt", rows)
    for part in ("trainlist01", "testlist01"):
        lines(folder / f"{part}.txt", ["Cat/1.avi"])
    return lambda: load_split("ucf101", root)


def scenes(root, mistake):
    names = [f"/{name[0]}/{name}" for _, name in rows_of(mistake)]
    lines(root / "sun397/ClassName.txt", names[:2] if mistake == "none" else names)
    for part in ("Training_01", "Testing_01"):
        lines(root / f"sun397/{part}.txt", ["/c/cat/1.jpg"])
    return lambda: load_split("sun397", root)


def flowers(root, mistake):
    io = pytest.importorskip("scipy.io")
    folder = root / "oxford_flowers"
    folder.mkdir()
    labels = [0.5 if label == 0.5 else label + 1 for label, _ in rows_of(mistake)]
    io.savemat(folder / "imagelabels.mat", {"labels": [labels * 2]})
    pairs = [
        f'"{int(label) + 1}": "{name}"'
        for label, name in dict.fromkeys(rows_of(mistake))
        if label != 0.5
    ]
    (folder / "cat_to_name.json").write_text("{" + ", ".join(pairs) + "}")
    return lambda: load_split("oxford_flowers", root)


def pickled(root, mistake, monkeypatch):
    coop(root, "mine", classes=2, train=1, val=1, test=1, size=8)
    path = root / "mine/split.json"
    path.write_text(path.read_text().replace("apple", "cat").replace("bird", "dog"))
    name = "dassl.data.datasets.base_dataset"
    module = types.ModuleType(name)

    class Datum:
        pass

    Datum.__module__, Datum.__qualname__, module.Datum = name, "Datum", Datum
    for part in ("dassl", "dassl.data", "dassl.data.datasets"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, name, module)
    train = []
    for i, (label, own) in enumerate(rows_of(mistake)):
        train.append(Datum())
        vars(train[-1]).update(_impath=f"/x/images/{i}.png", _label=label, _classname=own)
    (root / "shot_1-seed_1.pkl").write_bytes(pickle.dumps({"train": train}))
    return lambda: load_cell(root, "mine", 1, 1, pickles=str(root))


def coco(root, mistake):
    pytest.importorskip("mmdet")
    from hypvision.openmmlab.datasets.detection import CheckedCOCO

    categories = [dict(id=label, name=name) for label, name in rows_of(mistake)]
    (root / "a.json").write_text(json.dumps(dict(images=[], annotations=[], categories=categories)))
    return lambda: CheckedCOCO(str(root / "a.json"))


# the file, the label, both names, and what to do; of doubled keys of JSON what stands beside them
MISTAKES = {
    "two names": (
        r"FILE.*calls .*(\b[12]\b|'b'|'n00000002').* "
        r"'([dD]og|cow|bird)'.*'([cC]ow|dog|bird)'.*\. [A-Z].*\.$",
        r"FILE.*the key '[12]' is there twice, with 'dog' and 'cow'",
    ),
    "two labels": (
        r"FILE.* has '(c/cat|[cC]at|A380)' more than once, for the labels \d and \d.*\. [A-Z].*\.$",
        r"FILE.*the key 'cat' is there twice, with 0 and 2",
    ),
    "half": (
        r"FILE.*0\.5.*(whole number|an integer)",
        r"FILE.*no number: '?0\.5'? stands beside 'cow'",
    ),
}
# Reader -> the file that the message names, and the mistakes that can be written there.
READERS = {
    class_list: ("names.json", ("two names", "two labels", "half")),
    numbered_list: ("names.json", ("two names", "two labels", "half")),
    split_file: ("split.json", ("two names", "two labels", "half")),
    published_split: ("split_zhou_Caltech101.json", ("two names", "half")),
    class_folders: ("mine", ("two names", "two labels")),
    imagenet_names: ("classnames.txt", ("two names",)),
    variants: ("variants.txt", ("two labels",)),
    pets: ("oxford_pets|trainval.txt", ("two names", "two labels", "half")),
    actions: ("classInd.txt", ("two names", "two labels", "half")),
    scenes: ("ClassName.txt", ("two labels",)),
    flowers: (
        "cat_to_name.json|oxford_flowers|imagelabels.mat",
        ("two names", "two labels", "half"),
    ),
    pickled: ("shot_1-seed_1.pkl", ("two names", "two labels", "half")),
    coco: ("a.json", ("two names",)),
}


@each(
    "reader, mistake",
    [
        (reader, mistake)
        for reader, (_, mistakes) in READERS.items()
        for mistake in ("none", *mistakes)
    ],
)
def test_labels_and_names_belong_together(reader, mistake, tmp_path, monkeypatch):
    read = reader(tmp_path, mistake, *([monkeypatch] if reader is pickled else []))
    if mistake == "none":
        read()
        return
    with pytest.raises(HypvisionError) as caught:
        read()
    told = str(caught.value)
    assert "\n" not in told
    assert any(
        re.search(text.replace("FILE", f"({READERS[reader][0]})"), told)
        for text in MISTAKES[mistake]
    ), told


def test_published_lists_may_share_a_name(tmp_path):
    """As two pairs of ImageNet's classes do; who reads the names warns."""
    assert class_names(published_split(tmp_path, "two labels")().train) == ["cat", "dog", "cat"]
    host = build_host(bundle(), "zeroshot")
    with pytest.warns(
        UserWarning,
        match=r"The classes 0 \('cat'\) and 2 \('cat'\) have the same text of 20 tokens",
    ):
        host.set_classes(["cat", "dog", "cat"])


@each("name", sorted(HOSTS))
def test_texts_that_are_equal_where_they_are_read_are_warned_of(name):
    sizes = {"linear-probe": dict(classes=2), "tip-adapter": dict(keys=2, classes=2)}
    options = dict(sizes.get(name, {}))
    if name == "promptkd":
        options["teacher"] = build_host(bundle(), "zeroshot")
    if name == "coop":
        options["tokens"] = 2
    if "depth" in HOSTS[name].__init__.__code__.co_varnames:
        options["depth"] = 2
    clip = bundle()
    plain = clip.tokenizer
    clip = clip._replace(
        tokenizer=lambda texts: plain(texts, 200)[:, :20]
    )  # as CLIP's, which cuts what is too long
    host = build_host(clip, name, **options)
    if name == "promptkd":
        host.teacher.tokenizer = clip.tokenizer
    long = "a very " + "long " * 30
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        host.set_classes(["cat", "dog"])
        assert not caught
        host.set_classes(["cat", long + "dog", long + "cow"])
        host.set_classes(["cat", long + "dog", long + "cow"])
    told = [str(warning.message) for warning in caught]
    assert len(told) == (name != "linear-probe")  # which does not read them
    assert not told or re.search(
        r"classes 1 \('a very long .*'\) and 2 \('a very .* 20 tokens \(1 such", told[0]
    )


def test_the_sentence_is_that_of_clips_own_tokens():
    tokens = torch.tensor([[98, 3, 99], [98, 4, 99], [98, 3, 99], [98, 4, 99]])
    with pytest.warns(
        UserWarning, match=r"classes 0 \('a'\) and 2 \('c'\) .* of 3 tokens \(2 such pairs\)"
    ):
        warn_of_equal_texts("abcd", tokens)


def test_folders_with_blanks_have_names(tmp_path):
    """A folder ends where one that is there ends, not at the first blank; a tab says it in any
    case."""
    for part in ("train", "test"):
        folders(tmp_path, f"mine/{part}", ["big dog", "c1", "big"], 1)
    sheet = tmp_path / "mine/classnames.txt"
    sheet.write_text("c1 tree of life\nbig\tcow\nbig dog\tred car\n")
    assert class_names(load_split("mine", tmp_path).train) == ["tree of life", "cow", "red car"]
    sheet.write_text("big dog red car\n")
    with pytest.raises(
        HypvisionError,
        match=r"line 1: 'big dog red car' may be of the folder 'big' or 'big dog'. Put",
    ):
        load_split("mine", tmp_path)
    for part in ("train", "test"):
        (tmp_path / "mine" / part / "big").rename(tmp_path / "mine" / part / "small")
    assert class_names(load_split("mine", tmp_path).train) == ["red car", "c1", "small"]
    sheet.write_text("big dog red car\n\nc1\n")
    with pytest.raises(HypvisionError, match=r"line 3: 'c1' has no name behind the folder"):
        load_split("mine", tmp_path)
    sheet.write_text("big_dog red car\n")
    with pytest.warns(UserWarning, match="a name for the folder 'big_dog', which does not exist"):
        assert class_names(load_split("mine", tmp_path).train)[0] == "big dog"
    sheet.write_text("n1 a cat\nn2\tb cat\n")
    assert folder_names(sheet, "names") == {"n1": "a cat", "n2": "b cat"}


def test_labels_are_whole_numbers():
    assert [whole_label(value) for value in (3, "3", " 3 ", 3.0, -1)] == [3, 3, 3, 3, -1]
    for value in (0.5, "0.5", "x", "", True, None, [1], float("nan"), float("inf"), "²"):
        assert whole_label(value) is None, value


def test_given_classes_of_folders(tmp_path):
    folders(tmp_path, "data", ["cat", "dog"], 1)
    with pytest.raises(
        HypvisionError,
        match="'classes' of the data set has 'cat' more than once, for the labels 0 and 1",
    ):
        ImageFolderDataset(
            str(tmp_path / "data"), dict(input_size=8), classes=["cat", "cat", "dog"]
        )
