"""The data sets of zero-shot evaluations: each is read as its authors publish it."""

import json
from pathlib import Path

import pytest
from helpers.cases import each

pytest.importorskip("scipy")
pytest.importorskip("open_clip")
from helpers import zero_shot
from helpers.engine import ROOT
from helpers.fewshot_layouts import coop

from hypvision.data.zero_shot import PUBLISHED, READERS, imagenet_tree, published, suite
from hypvision.io.errors import HypvisionError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    zero_shot.make_lists(root)
    coop(root, "caltech101")
    return zero_shot.make(root)


def row(name, of="phyclip"):
    return next(row for row in suite(of) if row.set == name)


#: Of ``open_clip``'s 24 sets CUB is not CLIP_benchmark's, and all of ImageNet have its 80 prompts.
SUITES = [("hycoclip", 16, 0), ("uncha", 20, 0), ("phyclip", 20, 0), ("open_clip", 24, 5)]


@each("name, count, without", SUITES)
def test_a_suite_has_its_sets_of_classes_with_as_many_prompts_as_the_papers(name, count, without):
    rows = [row for row in suite(name) if row.task == "classification"]
    assert len({row.set for row in rows}) == len(rows) == count
    assert len([row for row in rows if not row.prompts]) == without
    for benchmark in rows:
        assert benchmark.reader in READERS and benchmark.classes
        if benchmark.prompts:
            prompts = benchmark.prompts.split("|")
            assert len({*prompts}) == benchmark.prompted
            assert all(prompt.count("{}") == 1 for prompt in prompts)
    others = {row.set for row in suite(name)} - {row.set for row in rows}
    assert {"coco", "flickr30k"} <= others
    # 7 of SugarCrepe and 6 of VL-Checklist
    assert len(others) == dict(phyclip=16, open_clip=9).get(name, 3)


def test_cifar_cars_and_caltech_have_the_prompts_of_clip():
    for name in ("cifar10", "cifar100"):
        prompts = row(name).prompts.split("|")
        assert [prompt.replace(" of a ", " of the ") for prompt in prompts[:9]] == prompts[9:]
    assert row("cars").prompts.count("my") == 6 and "i love my {}!" in row("cars").prompts
    prompts = row("caltech101").prompts.split("|")
    assert {"a {} in a video game.", "the plushie {}.", "graffiti of the {}."} <= {*prompts}


@each(
    "name, folders, of_papers, of_open_clip",
    [
        ("mnist", "09", ('a photo of the number: "9".',), ('a photo of the number: "9".',)),
        ("clevr", ["3", "10"], ("a photo of 3 objects.",), ("a picture of three objects",)),
        (
            "pcam",
            "01",
            ("this is a photo of lymph node containing metastatic tumor tissue.",),
            (
                "a histopathology slide showing lymph node containing metastatic tumor tissue",
                "histopathology image of lymph node containing metastatic tumor tissue",
            ),
        ),
        ("sst2", ["negative", "positive"], *[("a positive review of a movie.",)] * 2),
        ("resisc45", ["sea_ice"], None, ("sea ice from above",)),
    ],
)
def test_the_words_and_prompts_of_clip(name, folders, of_papers, of_open_clip, tmp_path):
    """CLIP's lists, which the papers' suites have, and CLIP_benchmark's where they differ."""
    for folder in folders:
        place = row(name).place
        zero_shot.write(tmp_path / place / folder / "1.png", "")
    for suite_of, expected in (("uncha", of_papers), ("open_clip", of_open_clip)):
        benchmark = row(name, suite_of)
        prompts, note = benchmark.sentences(suite_of, tmp_path)
        said = [text.replace("{}", benchmark.read(tmp_path).names[-1]) for text in prompts]
        assert not note and (expected is None or tuple(said)[-len(expected) :] == expected)


def test_published_numbers_are_of_the_suites():
    found = published()
    assert {name for name, _ in found} <= {row.set for row in suite("hycoclip")}
    models = {model for models in PUBLISHED.values() for model in models}
    assert set(next(iter(found.values()))) == {"set", "metric", *models}
    assert found["imagenet", "macro"]["UNCHA-B"] == "48.8"
    assert found["coco", "image_retrieval_recall@10"]["HyCoCLIP-S"] == "66.6"
    assert found["tree", "tie"]["ATMG-S"] == "4.26"
    for model in PUBLISHED["uncha"]:  # what the papers print, so that no row is shifted
        rows = [row for (_, metric), row in found.items() if metric == "macro"]
        assert len([row for row in rows if row[model]]) == 16


def test_the_page_says_the_same():
    page = (ROOT / "docs/hyperbolic-clip.md").read_text(encoding="utf-8")
    table = page.split("## Published numbers")[1].split("\n\n")[2].splitlines()
    found = published()
    columns = [(name, "macro") for name in ("imagenet", "caltech101", "food101")]
    columns += [("coco", f"{way}_retrieval_recall@10") for way in ("text", "image")]
    lines = [[word.strip() for word in line.strip("|").split("|")] for line in table[2:]]
    assert len(lines) == 8
    for model, *numbers in lines:
        assert numbers == [found[column][model] for column in columns]
    for benchmark in suite("phyclip"):
        if benchmark.reader != "coop":
            assert Path(benchmark.place).parts[0] in page


def test_what_is_missing_is_named(root):
    assert row("food101").missing(root) is None
    assert row("dtd").missing(root) == root / "dtd/labels/test1.txt"
    assert row("cifar10").missing(root) == root / "cifar10/test"
    tree = row("tree")._replace(also="imagenet/images/none")
    assert tree.missing(root) == root / "imagenet/images/none"


def labelled(name, root):
    data = row(name).read(root)
    return [(Path(item.path).name, data.names[item.label]) for item in data.items], data.names


def test_lists_of_authors_are_their_test_images(root):
    assert labelled("food101", root) == (
        [("2.jpg", "hot dog"), ("3.jpg", "apple")],
        ["apple", "hot dog"],
    )
    assert labelled("cub2011", root) == (
        [("b.jpg", "Black Bird"), ("c.jpg", "Owl")],
        ["Black Bird", "Owl"],
    )
    found, names = labelled("flowers102", root)
    assert sorted(found) == [("image_00001.jpg", "lily"), ("image_00003.jpg", "rose")]
    assert names == ["rose", "lily"]


def test_folders_and_coop(root):
    found, names = labelled("stl10", root)
    spoken = [group.replace("_", " ") for group in zero_shot.GROUPS]
    spoken[1] = "a spoken name"
    assert names == spoken and len(found) == sum(len(zero_shot.of(g)) for g in zero_shot.GROUPS)
    data = row("imagenet").read(root)
    assert data.names == zero_shot.GROUPS
    assert {Path(item.path).parent.name: item.label for item in data.items} == {
        f"n{9 - number}": number for number in range(5)
    }
    found, names = labelled("caltech101", root)
    assert len(found) == 10 and names == ["apple", "bird", "cup", "dice", "elk"]


def test_captions_and_choices(root):
    rows = row("coco").read(root)
    assert len(rows) == 64 and rows[3].texts[0] == zero_shot.ROWS[3]["name"]
    assert Path(rows[3].image) == root / "coco/val2017/000000000003.jpg"
    rows = row("flickr30k").read(root)
    assert len(rows) == 20 and [len(own.texts) for own in rows[:3]] == [1, 2, 1]
    assert len(row("sugar_crepe/add_att").read(root)) == 20
    choices = row("vl_checklist/center").read(root)  # without the first, which has no image
    assert [choice.right for choice in choices] == [own["name"] for own in zero_shot.ROWS[1:4]]
    assert {choice.wrong for choice in choices} == {"a car"}


def test_at_most_a_thousand_choices_of_those_that_are_there(tmp_path):
    zero_shot.make(tmp_path)
    table = tmp_path / "vl_checklist/data/objects.json"
    first, *rest = json.loads(table.read_text())
    table.write_text(json.dumps([first, *rest * 400]))
    assert len(row("vl_checklist/center").read(tmp_path)) == 1000


def test_the_tree_of_the_sheet(root):
    assert imagenet_tree(root / "imagenet/imagenet_isa.txt") == {
        "a": ["r"],
        "b": ["r"],
        "n9": ["r", "a"],
        "n8": ["r", "a"],
        "n7": ["r", "b"],
        "d": ["r", "b"],
        "n6": ["r", "b", "d"],
        "n5": ["r"],
    }


def test_a_cycle_is_no_tree(tmp_path):
    (tmp_path / "isa.txt").write_text("a b\nb a\n")
    with pytest.raises(HypvisionError, match="is no tree"):
        imagenet_tree(tmp_path / "isa.txt")


def test_prompts_are_the_suites_or_said_to_be_others(root, tmp_path):
    assert row("stl10").sentences("uncha", root) == (["a photo of a {}.", "a photo of the {}."], "")
    assert len(row("imagenet").sentences("open_clip", root)[0]) == 80
    assert len(row("imagenet").sentences("uncha", root)[0]) == 7
    texts, note = row("cub2011", "open_clip").sentences("open_clip", root)
    assert texts == ["a photo of a {}."] and "the suite has none" in note and "CUB" in note
    own = tmp_path / "stanford_cars/templates.txt"
    zero_shot.write(own, "a {}.\nthe {}.\n")
    assert row("cars").sentences("uncha", tmp_path) == (["a {}.", "the {}."], f"prompts of '{own}'")
    own.write_text("a car\n")
    with pytest.raises(HypvisionError, match="needs one {}"):
        row("cars").sentences("uncha", tmp_path)


@each(
    "name, file, text",
    [
        ("coco", "coco/annotations/captions_val2017.json", '{"images": [{}]}'),
        ("flickr30k", "flickr30k/dataset_flickr30k.json", '{"images": [{"split": "test"}]}'),
        ("sugar_crepe/add_obj", "sugarcrepe/add_obj.json", '{"0": ["a"]}'),
        ("vl_checklist/center", "vl_checklist/data/objects.json", '[["VG/1.jpg", {"POS": []}]]'),
        (
            "sugar_crepe/add_obj",
            "sugarcrepe/add_obj.json",
            '{"0": {"filename": "a", "caption": 3, "negative_caption": "b"}}',
        ),
        ("cub2011", "CUB_200_2011/image_class_labels.txt", "1 1\n2 3\n3 2\n"),
    ],
)
def test_files_of_another_form_are_named(name, file, text, tmp_path):
    zero_shot.make(tmp_path)
    zero_shot.make_lists(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(HypvisionError, match="not of the form that its authors publish"):
        row(name).read(tmp_path)


@pytest.mark.parametrize("name", ["sugar_crepe/add_obj", "flickr30k"])
def test_names_lead_nowhere_else(name, tmp_path):
    zero_shot.make(tmp_path)
    file = tmp_path / row(name).place
    text = file.read_text()
    file.write_text(text.replace('"filename": "', '"filename": "../../../'))
    with pytest.raises(HypvisionError, match="outside of"):
        row(name).read(tmp_path)
