"""``hypvision clip evaluate``: its numbers against plain loops over the embeddings, its files and
its table."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("scipy")
pytest.importorskip("open_clip")
from helpers import zero_shot

from hypvision.cli import main
from hypvision.clip.models import create_clip
from hypvision.clip.towers import encode_text
from hypvision.data.preprocessing import preprocessing_of
from hypvision.data.zero_shot import Labelled, suite
from hypvision.tasks.zero_shot import Evaluator

NAME = "hycoclip-emoji-s16"
OPTIONS = dict(name=NAME, pretrained="zoo:hycoclip-emoji-s16.scenes")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return zero_shot.make(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def clip():
    return create_clip(*OPTIONS.values())


@pytest.fixture
def evaluator(clip, root, tmp_path):
    return Evaluator(clip, OPTIONS, "phyclip", root, tmp_path)


def row(name):
    return next(row for row in suite("phyclip") if row.set == name)


@torch.no_grad()
def point(clip, path, squash=False):
    view = preprocessing_of(clip.model)
    image = Image.open(path).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(white, image).convert("RGB")
    if squash:
        image = image.resize(view.size, Image.Resampling.BICUBIC)
    return clip.embed_images(view(image)[None])[0]


def inner(x, y):
    """The Lorentzian inner product."""
    x, y = x.double().numpy(), y.double().numpy()
    return x[1:] @ y[1:] - x[0] * y[0]


@torch.no_grad()
def scores(clip, items, names, templates):
    points = []
    for name in names:
        tokens = clip.tokenizer([template.format(name) for template in templates])
        points.append(clip.space.embed(encode_text(clip.model, tokens).mean(0), "text"))
    images = [point(clip, item.path) for item in items]
    return np.array([[inner(x, y) for y in points] for x in images])


def test_accuracy_is_the_mean_of_classes(evaluator, clip, root):
    found, kept = evaluator(row("stl10"))
    data = row("stl10").read(root)
    templates = ["a photo of a {}.", "a photo of the {}."]
    guess = scores(clip, data.items, data.names, templates).argmax(1)
    labels = np.array([item.label for item in data.items])
    shares = [(guess[labels == label] == label).mean() for label in range(5)]
    assert not kept and 0 < np.mean(shares) < 1
    assert found.metrics["macro"] == pytest.approx(np.mean(shares))
    assert found.metrics["mean_per_class_recall"] == pytest.approx(np.mean(shares))
    assert found.metrics["acc1"] == pytest.approx((guess == labels).mean())
    assert found.metrics["acc5"] == 1.0
    assert "5 classes, not 10" in found.hypvision["note"]


def test_a_class_without_images_counts_where_papers_count_it(evaluator, monkeypatch):
    """The published mean is over the classes that are there or predicted, CLIP_benchmark's over
    those that are there."""
    items = row("stl10").read(evaluator.root).items[:2]
    items = [item._replace(label=0) for item in items]
    given = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    data = Labelled(items, ["a", "b", "c"])
    monkeypatch.setattr(Evaluator, "classified", lambda *_: (data, given))
    metrics = evaluator(row("stl10"))[0].metrics
    assert metrics["mean_per_class_recall"] == metrics["acc1"] == 0.5
    assert metrics["macro"] == 0.25


def test_errors_in_the_tree_are_those_of_the_sheet(evaluator, monkeypatch):
    """Predicted a2 for a1: 2, 1, 1, 1, 1; here a1 is n9 and a2 n8. And b1 for a1."""
    data = row("imagenet").read(evaluator.root)
    given = torch.eye(5)[[item.label for item in data.items]]
    first = [number for number, item in enumerate(data.items) if item.label == 0]
    given[first] = torch.eye(5)[1]
    monkeypatch.setattr(Evaluator, "classified", lambda *_: (data, given))
    metrics = evaluator(row("tree"))[0].metrics
    share = len(first) / len(data.items)
    assert metrics["tie"] == pytest.approx(2 * share)
    assert [metrics[k] for k in ("lca", "jaccard", "precision", "recall")] == [1, 1, 1, 1]
    given[first] = torch.eye(5)[2]
    (file,) = evaluator.out.glob("imagenet1k_tree*")
    file.unlink()
    metrics = evaluator(row("tree"))[0].metrics
    wanted = dict(tie=4.0, lca=2.0, jaccard=1 / 3, precision=0.5, recall=0.5)
    for name, value in wanted.items():  # of those that are right 0 or 1
        right = 0.0 if name == "tie" else 1.0
        assert metrics[name] == pytest.approx(share * value + (1 - share) * right)


def test_the_tree_reads_the_images_of_the_classes_once(evaluator, monkeypatch):
    evaluator(row("imagenet"))
    monkeypatch.setattr(Evaluator, "embed", None)
    found, _ = evaluator(row("tree"))
    assert found.metrics["tie"] > 0 and found.hypvision["images"] > 5


def test_retrieval_counts_any_partner(evaluator, clip, root):
    rows = row("coco").read(root)
    texts = [(number, text) for number, own in enumerate(rows) for text in own.texts]
    with torch.no_grad():
        points = clip.embed_texts([text for _, text in texts])
    images = [point(clip, own.image, squash=True) for own in rows]
    found, _ = evaluator(row("coco"))
    table = np.array([[inner(x, y) for y in points] for x in images])
    owner = np.array([number for number, _ in texts])
    for k in (1, 5, 10):
        near = (-table).argsort(1, kind="stable")[:, :k]
        right = np.mean([number in owner[near[number]] for number in range(len(rows))])
        assert found.metrics[f"text_retrieval_recall@{k}"] == pytest.approx(right, abs=1e-9)
        near = (-table.T).argsort(1, kind="stable")[:, :k]
        right = np.mean([owner[number] in near[number] for number in range(len(texts))])
        assert found.metrics[f"image_retrieval_recall@{k}"] == pytest.approx(right, abs=1e-9)
    assert found.metrics["text_retrieval_recall@1"] < found.metrics["text_retrieval_recall@10"]


@pytest.mark.parametrize("name", ["sugar_crepe/add_obj", "sugar_crepe/swap_att"])
def test_the_right_caption_must_be_more_similar(name, evaluator, clip, root):
    rows = row(name).read(root)
    hits = []
    for choice in rows:
        image = point(clip, choice.image, squash=True)
        with torch.no_grad():
            right, wrong = (clip.embed_texts([text])[0] for text in choice[1:])
        hits.append(choice.right != choice.wrong and inner(image, right) > inner(image, wrong))
    found, _ = evaluator(row(name))
    assert found.metrics["acc"] == pytest.approx(np.mean(hits)) and 0 < np.mean(hits) < 1
    scores = []  # of all true pairs, and of all false ones
    for part in ("right", "wrong"):
        with torch.no_grad():
            texts = clip.embed_texts([getattr(choice, part) for choice in rows])
            images = torch.stack([point(clip, choice.image, squash=True) for choice in rows])
            inside = clip.space.half_aperture(texts) - clip.space.exterior_angle(texts, images)
        scores.append(inside.double().numpy())
    pairs = np.sign(scores[0][:, None] - scores[1])
    assert found.metrics["cone_auc"] == pytest.approx((1 + pairs.mean()) / 2, abs=1e-3)


def test_results_are_kept_while_they_are_of_the_same_thing(evaluator, clip, root, monkeypatch):
    benchmark = row("flickr30k")
    first, kept = evaluator(benchmark)
    assert not kept
    again = Evaluator(clip, OPTIONS, "phyclip", root, evaluator.out)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "embed", None)
        assert again(benchmark) == (first, True)
    for suite_of, same in (("uncha", True), ("open_clip", False)):  # the last resizes otherwise
        other = Evaluator(clip, OPTIONS, suite_of, root, evaluator.out)
        assert other(benchmark)[1] is same
    clip.model.visual_alpha.data += 0.1  # other weights under the same name
    try:
        assert Evaluator(clip, OPTIONS, "open_clip", root, evaluator.out)(benchmark)[1] is False
    finally:
        clip.model.visual_alpha.data -= 0.1


@pytest.mark.parametrize("changed", ["name", "order", "template"])
def test_other_class_names_or_templates_are_measured_again(changed, evaluator, clip, root):
    benchmark = row("stl10")
    first, _ = evaluator(benchmark)
    one, two, *_ = benchmark.read(root).names
    other = {
        "name": dict(words=f"{one}=something else"),
        "order": dict(words=f"{one}={two}|{two}={one}"),
        "template": dict(prompts="a drawing of a {}."),
    }
    benchmark = benchmark._replace(**other[changed])
    again = Evaluator(clip, OPTIONS, "phyclip", root, evaluator.out)
    found, kept = again(benchmark)
    assert not kept and found.hypvision["classes"] != first.hypvision["classes"]
    assert again(benchmark) == (found, True)


CONES = ("cone_auc", "cone_ap", "angle_auc", "angle_ap")
#: What each task of CLIP_benchmark writes as its metrics, and what we add: ``macro``, the trees,
#: more recalls than its recall@5, and, for a CLIP with cones, how they tell true from false pairs.
COLUMNS = {
    "zeroshot_classification": {"acc1", "acc5", "mean_per_class_recall", "macro"},
    "zeroshot_retrieval": {
        f"{a}_retrieval_recall@{k}" for a in ("image", "text") for k in (1, 5, 10)
    },
    "image_caption_selection": {"image_acc", "text_acc", "acc", *CONES},
    "tree": {"tie", "lca", "jaccard", "precision", "recall"},
}


def _built(content):
    """The row that ``clip_benchmark build`` makes of a result file: its metrics beside the rest."""
    row = {**content["metrics"], **content}
    del row["metrics"]
    return {**row, "model_fullname": content["model"] + " " + content["pretrained"]}


def test_the_command(root, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["clip", "evaluate", "--clip", NAME, "--suite", "phyclip", "--data", str(root)]
    words += ["--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert f"cifar10: left out, there is no '{root / 'cifar10/test'}'" in told
    files = sorted(path.name for path in out.glob("*.json"))
    assert len(files) == 13 and "measured before" not in told
    table = [_built(json.loads((out / file).read_text())) for file in files]
    for line in table:
        own = COLUMNS["tree" if line["dataset"] == "imagenet1k_tree" else line["task"]]
        assert line.keys() == {*own, "dataset", "model", "pretrained", "task", "language",
                               "model_fullname", "hypvision"}  # fmt: skip
        assert line["model_fullname"] == f"{NAME} zoo:hycoclip-emoji-s16.scenes"
        assert all(0 <= line[name] <= 1 for name in own if name != "tie" and name != "lca")
    found = [(line["dataset"], line["task"], line["language"]) for line in table]
    assert ("stl10", "zeroshot_classification", "en") in found
    assert ("mscoco_captions", "zeroshot_retrieval", "en") in found
    assert ("sugar_crepe/swap_obj", "image_caption_selection", "en") in found
    name = "stl10_zoo_hycoclip-emoji-s16.scenes"
    assert f"{name}_{NAME}_en_zeroshot_classification.json" in files
    with (out / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    sugar = [each for each in rows if each["set"].startswith("sugar_crepe/")]
    accuracy = [float(each["measured"]) for each in sugar if each["metric"] == "acc"]
    assert {each["metric"] for each in sugar} == {"acc", "cone_auc", "cone_ap"}
    counts = [10, 20, 30, 40, 50, 60, 64]
    overall = np.average(accuracy, weights=counts)
    (whole,) = [each for each in rows if each["set"] == "sugar_crepe"]
    assert float(whole["measured"]) == pytest.approx(overall, abs=0.11)
    assert main([*words, "--sets", "coco", "stl10"]) == 0
    assert capsys.readouterr().out.count("measured before") == 2


def test_published_numbers_stand_beside(root, tmp_path, capsys):
    words = ["clip", "evaluate", "--clip", "emoji-s16", "--suite", "uncha", "--data", str(root)]
    assert main([*words, "--sets", "stl10", "--device", "cpu", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-5:] == ["HyCoCLIP-S", "UNCHA-S", "ATMG-S", "HyCoCLIP-B", "UNCHA-B"]
    assert lines[2].split()[-5:] == ["92.5", "94.4", "90.7", "95.0", "95.7"]
    assert lines[-1] == str(tmp_path / "table.csv")


def test_a_set_that_fails_does_not_cost_the_others(root, tmp_path, capsys):
    words = ["clip", "evaluate", "--clip", NAME, "--suite", "open_clip", "--device", "cpu"]
    words += ["--out", str(tmp_path / "out"), "--data"]
    assert main([*words, str(tmp_path)]) == 2
    assert "None of these sets is in" in capsys.readouterr().err
    zero_shot.make(tmp_path)
    (tmp_path / "coco/val2017/000000000007.jpg").write_text("no image")
    zero_shot.write(tmp_path / "food-101/meta/test.txt", "")
    zero_shot.write(tmp_path / "food-101/images/a/b.jpg", "")
    sets = ["--sets", "coco", "flickr30k", "food101"]
    assert main([*words, str(tmp_path), *sets]) == 2
    told = capsys.readouterr()
    assert "flickr30k: 20 images" in told.out and "table.csv" in told.out
    assert "2 sets could not be measured" in told.err and "000000000007.jpg" in told.err
    assert "food101: The data set has no test images" in told.err
    assert main([*words, str(tmp_path), "--sets", "coko"]) == 2
    assert "coco" in capsys.readouterr().err
    assert not list(Path(tmp_path, "out").glob("mscoco*"))
