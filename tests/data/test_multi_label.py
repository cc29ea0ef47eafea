"""Tables of images with any number of labels: three forms of one table, and what can be wrong with
them."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from hypvision.data.multi_label import MultiLabelDataset
from hypvision.data.usage import usages
from hypvision.io.errors import HypvisionError

TABLES = {
    "columns.csv": "image,cat,dog,owl\na.png,1,0,1\nsub/b.png,0,0,0\n\nc.png, 0 ,1,0\n",
    "places.csv": "cat,dog,image,owl\n1,0,a.png,1\n0,0,sub/b.png,0\n0,1,c.png,0\n",
    "names.csv": "\ufeffimage,labels\na.png,owl;cat\nsub/b.png,\nc.png,dog\n",
    "names.jsonl": '{"image": "a.png", "labels": ["cat", "owl"]}\n{"image": "sub/b.png", "labels": '
    '[]}\n\n{"image": "c.png", "labels": ["dog"], "source": "x"}\n',
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "sub/b.png", "c.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    return tmp_path


def dataset(folder, table, name="table.csv", **options):
    (folder / name).write_text(table, encoding="utf-8")
    return MultiLabelDataset(str(folder), str(folder / name), dict(input_size=8), **options)


@pytest.mark.parametrize("name", TABLES)
def test_three_forms_of_one_table(folder, name):
    data = dataset(folder, TABLES[name], name)
    assert data.metainfo["classes"] == ("cat", "dog", "owl") and data.labels.tolist() == [
        [1, 0, 1],
        [0] * 3,
        [0, 1, 0],
    ]
    sample = data[2]
    assert (
        sample["inputs"].shape == (3, 8, 8)
        and sample["label"].tolist() == [0.0, 1.0, 0.0]
        and sample["index"] == 2
    )
    assert data.name(1) == str(folder / "sub/b.png") and data.read(1).size == (8, 8)


def test_another_part_has_the_classes_of_the_training(folder):
    (folder / "train.csv").write_text(TABLES["columns.csv"])
    data = dataset(folder, "image,labels\na.png,owl\n", classes=str(folder / "train.csv"))
    assert data.labels.tolist() == [[0, 0, 1]] and data.metainfo["classes"] == ("cat", "dog", "owl")
    data = dataset(folder, "image,owl,cat,eel,dog\na.png,1,0,0,0\n", classes=["cat", "dog", "owl"])
    np.testing.assert_array_equal(data.labels, [[0, 0, 1]])
    with pytest.raises(
        HypvisionError, match=r"'a.png' the label 'Owl', which is none of the 3 classes.*mean owl"
    ):
        dataset(folder, "image,labels\na.png,Owl\n", classes=str(folder / "train.csv"))


@pytest.mark.parametrize("train", TABLES)
def test_a_class_without_a_column_is_an_error(folder, train):
    (folder / train).write_text(TABLES[train], encoding="utf-8")
    for classes, source in (
        (str(folder / train), f"the table '.*{train}'"),
        (["cat", "dog", "owl"], "'classes' of"),
    ):
        said = f"'Dog' only here; {source}.*'dog', 'owl' only there. 'Dog' is called 'dog' there"
        with pytest.raises(
            HypvisionError,
            match=f"table.csv': 2 classes, {said}.*Give the table a column for each class",
        ):
            dataset(folder, "image,cat,Dog\na.png,1,0\n", classes=classes)


def test_tables_that_are_not_given_the_classes_follow_them_later(folder):
    """As the engine does it where the data set of a part has no ``classes``."""
    data = dataset(folder, TABLES["columns.csv"])
    data.use_classes(["owl", "dog", "cat"])
    assert data.labels.tolist() == [[1, 0, 1], [0] * 3, [0, 1, 0]] and data.metainfo["classes"] == (
        "owl",
        "dog",
        "cat",
    )
    data = dataset(folder, "image,labels\nc.png,dog\n")
    data.use_classes(["cat", "dog"])
    assert data[0]["label"].tolist() == [0.0, 1.0]
    data = dataset(folder, "image,dog\nc.png,1\n")
    with pytest.raises(HypvisionError, match="table.csv': 1 classes.*the model .*'cat' only there"):
        data.use_classes(["cat", "dog"])


def test_images_labels_and_classes_are_counted(folder):
    (usage,) = usages(dataset(folder, TABLES["columns.csv"]))
    assert str(usage).endswith("table.csv': used 3 of 3 images, 3 of 3 labels, 3 of 3 classes.")
    (folder / "train.csv").write_text(TABLES["columns.csv"])
    (usage,) = usages(
        dataset(folder, "image,labels\na.png,owl\n", classes=str(folder / "train.csv"))
    )
    assert (
        "used 1 of 1 images, 1 of 1 labels, 1 of 3 classes. Left out: 2 classes (without images: "
        "cat, dog)" in str(usage)
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "begins with ''. Expected: a .csv"),
        ("image\na.png\n", "begins with 'image'"),
        ("image,cat\n", "has no images"),
        ("image,labels\na.png,\n", "has no labels"),
        pytest.param(f"image,labels\na.png,{140_000 * 'x'}\n", "is not CSV", id="huge"),
        ("image,cat,cat\na.png,1,0\n", "'cat' more than once"),
        ("image,cat,\na.png,1,0\n", "not a name"),
        ("image,cat\na.png,2\n", "line 2: '2' is neither 1 nor 0"),
        ("image,cat\na.png,\n", "line 2: '' is neither 1 nor 0"),
        ("image,cat\na.png,1\nc.png\n", "line 3: the number of cells is 1, not 2"),
        ("image,cat\n,1\n", "line 2: no image is named"),
        ("image,cat\na.png,1\na.png,1\n", "line 3: the image 'a.png' is listed twice"),
        (
            "image,cat\nz.png,1\na.png,1\n",
            r"1 of the 2 images of .* do not exist, such as .*z\.png",
        ),
    ],
)
def test_mistakes_in_tables(folder, table, said):
    with pytest.raises(HypvisionError, match=said):
        dataset(folder, table)


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"image": "a.png"}', '{"image": "a.png", "labels": [1]}', "{"]
)
def test_mistakes_in_lines_of_json(folder, line):
    with pytest.raises(HypvisionError, match="line 1.*Expected: a .csv"):
        dataset(folder, line, "table.jsonl")
