"""``hypvision metric embed``, ``search`` and ``hierarchy``, on images drawn here."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

pytest.importorskip("mmengine")
from helpers.retrieval_layouts import SIZE, write_folder, write_image

from hypvision.cli import main
from hypvision.geometry import Lorentz, lorentz
from hypvision.inference.sources import find_sources
from hypvision.io.errors import HypvisionError
from hypvision.tasks.class_hierarchy import embed_classes, recovered_groups, recovered_hierarchy
from hypvision.tasks.embedding import embed_sources, load_embedder, load_learner
from hypvision.viz.sheet import search_sheet
from hypvision.zoo.backbones import build_model

CLASSES = ("cat", "dog", "ship", "truck")
ANCESTORS = dict(cat=("animal",), dog=("animal",), ship=("vehicle",), truck=("vehicle",))
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """Config and checkpoint of an untrained metric learner, and its data."""
    from mmengine.config import Config
    from mmengine.registry import MODELS

    import hypvision.tasks.metric_learning  # noqa: F401 - registers the learner

    root = tmp_path_factory.mktemp("learner")
    data = write_folder(root / "data", CLASSES, images=5)
    transform = dict(input_size=32, crop_pct=1.0)

    def loader(classes):
        dataset = dict(
            type="RetrievalFolder", root=str(data), classes=classes, ancestors=ANCESTORS,
            transform=transform
        )  # fmt: skip
        return dict(batch_size=4, num_workers=0, dataset=dataset)

    torch.manual_seed(0)
    config = Config(
        dict(
            data_root=str(data),
            model=dict(
                type="MetricLearner",
                backbone=dict(
                    model_name="test_vit", img_size=32, pretrained=True
                ),  # not fetched again
                neck=dict(dim=8, geometry="lorentz"),
                num_classes=2,
                hier_loss=dict(num_proxies=6, neighbours=3, draws=3),
            ),
            train_dataloader=loader(CLASSES[:2]),
            test_dataloader=loader(CLASSES[2:]),
        )
    )
    config.dump(root / "learner.py")
    config.model.backbone.pretrained = False
    torch.save(dict(state_dict=MODELS.build(config.model).state_dict()), root / "weights.pth")
    torch.save(timm.create_model("test_vit").state_dict(), root / "timm.pth")
    return root


def options(learner):
    return ["--config", str(learner / "learner.py"), "--weights", str(learner / "weights.pth")]


def test_a_trained_classifier_gives_the_features_before_its_head(learner, tmp_path):
    from mmengine.config import Config

    import hypvision.tasks.classification  # noqa: F401 - registers the classifier

    torch.manual_seed(0)
    backbone = dict(model_name="test_vit", img_size=32, num_classes=3)
    dataset = dict(
        type="ImageFolder", root=str(learner / "data"), transform=dict(input_size=32, crop_pct=1.0)
    )
    config = Config(
        dict(
            model=dict(type="ImageClassifier", backbone=backbone),
            test_dataloader=dict(batch_size=4, dataset=dataset),
        )
    )
    config.dump(tmp_path / "classifier.py")
    network = timm.create_model(**backbone).eval()
    state = {f"backbone.{name}": value for name, value in network.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / "weights.pth")
    embedder = load_embedder(tmp_path / "classifier.py", tmp_path / "weights.pth")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(images), pre_logits=True)
        assert torch.allclose(embedder.embed(images), expected, atol=1e-6)
    assert embedder.space == "cosine"


def test_embed_writes_points_of_the_hyperboloid(learner, tmp_path):
    out = tmp_path / "deep" / "found.npz"
    assert (
        main(
            [
                "metric",
                "embed",
                str(learner / "data/cat"),
                *options(learner),
                *f"--batch 2 --save {out}".split(),
            ]
        )
        == 0
    )
    with np.load(out) as file:
        found = torch.from_numpy(file["embeddings"])
        assert found.shape == (5, 9) and str(file["space"]) == "lorentz"
        assert [Path(p).name for p in file["paths"]] == [f"{i:04d}.png" for i in range(5)]
    Lorentz(1.0).check_point(found)
    model, _ = load_learner(learner / "learner.py", learner / "weights.pth")
    image = Image.open(learner / "data/cat/0003.png").resize((32, 32), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    x = torch.from_numpy(pixels).float().permute(2, 0, 1)[None]
    expected = model.comparable(model.embed(x))[0]
    assert lorentz.dist(found[3], expected, 1.0) < 0.1 < lorentz.dist(found[3], -expected, 1.0)


@pytest.mark.parametrize("kind", ["learner", "timm"])
def test_search_finds_a_copy_first(learner, tmp_path, capsys, kind):
    query = tmp_path / "query.png"
    write_image(query, 2, 3)  # the colour of a ship, and its noise
    weights = learner / ("weights.pth" if kind == "learner" else "timm.pth")
    given = (
        options(learner)
        if kind == "learner"
        else ["--model", "test_vit", "--weights", str(weights)]
    )
    out = tmp_path / ("found.jpg" if kind == "timm" else "found.png")
    assert (
        main(
            [
                *f"metric search {query} --gallery {learner / 'data'}".split(),
                *given,
                *f"-k 4 --save {out}".split(),
            ]
        )
        == 0
    )
    heading, *said = capsys.readouterr().out.splitlines()
    distance = "hyperbolic" if kind == "learner" else "cosine"
    assert heading == f"Nearest to {query}, behind their {distance} distances:"
    assert said[0].startswith("0.0000") and said[0].endswith("ship/0003.png") and len(said) == 5
    assert said[-1] == f"Drawn in {out}; weights {weights}"
    assert [float(line.split()[0]) for line in said[:4]] == sorted(
        float(line.split()[0]) for line in said[:4]
    )
    with Image.open(out) as drawn:
        assert drawn.size[0] == 5 * 170 + 10
        assert drawn.format == ("JPEG" if kind == "timm" else "PNG")


def test_weights_bring_the_images_that_their_training_wrote(tmp_path):
    """As in hypvision.load of the same file; other files leave those of the model."""
    given = dict(
        size=[3, 64, 64],
        mean=[0.1, 0.2, 0.3],
        std=[0.4, 0.5, 0.6],
        crop_pct=1.0,
        interpolation="bilinear",
    )
    network = timm.create_model("hcformer_nano", num_classes=3)
    for name, meta in (("ours", dict(meta=dict(input=given))), ("plain", {})):
        torch.save(dict(state_dict=network.state_dict(), **meta), tmp_path / f"{name}.pth")
    red = Image.new("RGB", (80, 80), "red")
    plain = load_embedder(model="hcformer_nano", weights=tmp_path / "plain.pth").transform(red)
    assert tuple(plain.shape) == network.pretrained_cfg["input_size"]
    seen = load_embedder(model="hcformer_nano", weights=tmp_path / "ours.pth").transform(red)
    assert seen.shape == (3, 64, 64)
    assert seen[:, 0, 0].tolist() == pytest.approx([0.9 / 0.4, -0.4, -0.5], abs=1e-5)
    explained = build_model("hcformer_nano", tmp_path / "ours.pth").pretrained_cfg
    assert explained["mean"] == (0.1, 0.2, 0.3) and explained["input_size"] == (3, 64, 64)


def test_a_timm_model_comes_with_its_published_weights(learner, tmp_path, capsys, monkeypatch):
    """The checkpoint stands for the download: what the hub is asked for, and that its weights
    compute the features."""
    asked = []

    def fetch(repository, name):
        asked.append(repository)
        return learner / "timm.pth"

    monkeypatch.setattr("hypvision.models.timm_models.fetch_from_hub", fetch)
    features = []
    for model in ("test_vit.r160_in1k", f"test_vit --weights {learner / 'timm.pth'}"):
        out = tmp_path / "found.npz"
        assert (
            main(
                [
                    *f"metric embed {learner / 'data/cat'} --model".split(),
                    *model.split(),
                    "--save",
                    str(out),
                ]
            )
            == 0
        )
        with np.load(out) as file:
            features.append(file["embeddings"])
            assert str(file["weights"]) == model.split()[-1]
        assert f"; weights {model.split()[-1]}" in capsys.readouterr().out
    assert asked == ["timm/test_vit.r160_in1k"]
    np.testing.assert_allclose(features[0], features[1])

    def offline(*args, **kwargs):
        raise OSError("no route to the hub")

    monkeypatch.setattr("hypvision.models.timm_models.fetch_from_hub", lambda *_: None)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    assert main(["metric", "embed", str(learner / "data/cat"), "--model", "test_vit"]) == 2
    said = capsys.readouterr().err
    assert "weights of 'test_vit' cannot be fetched (OSError: no route to the hub)" in said
    assert "--weights" in said


def test_the_query_is_not_among_its_results(learner, tmp_path, capsys):
    query = learner / "data/ship/0001.png"
    assert main(["metric", "search", str(query), "--gallery", str(learner / "data"),
    *options(learner), "-k", "99",
                 "--save", str(tmp_path / "found.png")]) == 0  # fmt: skip
    said = capsys.readouterr().out.partition(":\n")[2]  # without the heading
    assert "ship/0001.png" not in said and said.count(".png") == 4 * 5 - 1 + 1


def test_search_and_embed_take_lists_and_patterns(learner, tmp_path, capsys):
    (tmp_path / "list.txt").write_text(
        f"{learner}/data/cat/0001.png\n{learner}/data/ship/0003.png\n"
    )
    out = tmp_path / "found.png"
    given = [
        "--gallery",
        str(learner / "data/*/000[13].png"),
        *options(learner),
        *f"-k 3 --save {out}".split(),
    ]
    assert main(["metric", "search", str(tmp_path / "list.txt"), *given]) == 0
    names = ["found.csv", "found.json", "found_0001.png", "found_0003.png", "list.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    queries = json.loads((tmp_path / "found.json").read_text())["queries"]
    said = capsys.readouterr().out.splitlines()
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert [Path(query["file"]).parent.name for query in queries] == ["cat", "ship"]
    assert len(rows) == 6
    for i, query in enumerate(queries):
        found = query["neighbours"]
        assert query["file"] not in [item["file"] for item in found]  # nor is it its own neighbour
        assert [item["distance"] for item in found] == sorted(item["distance"] for item in found)
        assert said[4 * i : 4 * i + 4] == [
            f"Nearest to {query['file']}, behind their hyperbolic distances:",
            *(f"{x['distance']:.4f}  {x['file']}" for x in found),
        ]
        assert [row["file"] for row in rows if row["query"] == query["file"]] == [
            item["file"] for item in found
        ]
    assert (
        main(
            [
                "metric",
                "embed",
                str(tmp_path / "list.txt"),
                *options(learner),
                "--save",
                str(tmp_path / "e.npz"),
            ]
        )
        == 0
    )
    with np.load(tmp_path / "e.npz") as file:
        assert [Path(path).parent.name for path in file["paths"]] == ["cat", "ship"]
        assert (file["frames"] == -1).all()


def test_frames_of_videos_are_found(learner, tmp_path, capsys):
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (SIZE, SIZE))
    if not writer.isOpened():
        pytest.skip("OpenCV has no encoder here")
    for name in ("cat", "dog", "ship"):
        writer.write(
            np.array(Image.open(learner / f"data/{name}/0001.png").convert("RGB"))[..., ::-1].copy()
        )
    writer.release()
    given = [
        "--gallery",
        str(path),
        *options(learner),
        *f"-k 1 --save {tmp_path / 'found.png'}".split(),
    ]
    assert main(["metric", "search", str(path), *given, "--every", "2"]) == 0
    queries = json.loads((tmp_path / "found.json").read_text())["queries"]
    assert [(query["frame"], query["neighbours"][0]["frame"]) for query in queries] == [
        (0, 2),
        (2, 0),
    ]
    assert (tmp_path / "found_clip_000002.png").is_file()
    assert (
        main(["metric", "embed", str(path), *options(learner), "--save", str(tmp_path / "e.npz")])
        == 0
    )
    with np.load(tmp_path / "e.npz") as file:
        assert file["frames"].tolist() == [0, 1, 2] and set(file["paths"]) == {str(path)}


def test_a_sheet_shows_the_images_in_order():
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    query, *found = (Image.new("RGB", (SIZE, 2 * SIZE), colour) for colour in colours)
    sheet = search_sheet(query, [(image, "text") for image in found], columns=2, cell=100)
    assert [sheet.getpixel((60 + 110 * (i % 2), 60 + 133 * (i // 2))) for i in range(3)] == colours


def test_the_text_below_a_neighbour_has_a_second_line():
    """What does not fit into the first line of a long name is drawn below it, not cut off."""
    grey = Image.new("RGB", (SIZE, SIZE), "grey")
    short, long = (
        search_sheet(grey, [(grey, text)], cell=100)
        for text in ("a", "a " * 9 + "photos/Lemon_001")
    )
    assert long.height > short.height and long.width == short.width


@pytest.mark.drawn
def test_hierarchy_draws_and_reports(learner, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "drawn"
    assert (
        main(["metric", "hierarchy", *options(learner), "--per-class", "3", "--out", str(out)]) == 0
    )
    report = json.loads((out / "hierarchy.json").read_text())
    assert report["classes"] == list(CLASSES)
    assert report["images"] == 12
    assert report["curvature"] == pytest.approx(1)
    assert all(-1 <= value <= 1 for value in report["cophenetic"].values())
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == report
    for name in ("disk", "tree", "proxies"):
        assert (
            len(
                np.unique(
                    np.asarray(Image.open(out / f"{name}.png").convert("RGB")).reshape(-1, 3),
                    axis=0,
                )
            )
            > 10
        )
    assert main(["metric", "hierarchy", *options(learner), "--split", "test", "--out", str(out),
    "--data-root",
                 str(learner / "data")]) == 0  # fmt: skip
    assert json.loads((out / "hierarchy.json").read_text())["classes"] == ["ship", "truck"]


def test_another_data_root_moves_queries_and_gallery(tmp_path):
    from hypvision.engine.config import Run

    for colour in ("red", "blue"):
        for part in ("query", "gallery"):
            for name in "ab":
                (tmp_path / colour / part / name).mkdir(parents=True)
                Image.new("RGB", (32, 32), colour).save(tmp_path / colour / part / name / "1.png")
    old = str(tmp_path / "red")
    transform = dict(input_size=32, mean=(0,) * 3, std=(1,) * 3)
    dataset = dict(
        type="RetrievalFolder", root=f"{old}/query", gallery=f"{old}/gallery", transform=transform
    )
    config = Run(
        dict(model=dict(type="MetricLearner"), data_root=old, test_dataloader=dict(dataset=dataset))
    )
    learner = SimpleNamespace(embed=lambda x: x.mean((2, 3)), comparable=lambda x: x)
    found = embed_classes(learner, config, "test", data_root=str(tmp_path / "blue"))
    assert found.points.tolist() == [[0, 0, 1]] * 4 and found.labels.tolist() == [0, 0, 1, 1]
    assert config.data_root == old
    assert embed_classes(learner, config, "test").points[0].tolist() == [1, 0, 0]
    config.data_root = ""
    with pytest.raises(HypvisionError, match="no 'data_root'"):
        embed_classes(learner, config, "test", data_root=old)


def test_a_class_of_both_splits_is_one(tmp_path, monkeypatch):
    from mmengine.registry import DATASETS

    from hypvision.engine.config import Run

    def data(names, colour):
        for name in names:
            (tmp_path / colour / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), colour).save(tmp_path / colour / name / "1.png")
        transform = dict(input_size=32, mean=(0,) * 3, std=(1,) * 3)
        return dict(
            dataset=dict(type="RetrievalFolder", root=str(tmp_path / colour), transform=transform)
        )

    loaders = dict(train_dataloader=data("abc", "red"), test_dataloader=data("bd", "blue"))
    config = Run(dict(model=dict(type="MetricLearner"), **loaders))
    learner = SimpleNamespace(embed=lambda x: x.mean((2, 3)), comparable=lambda x: x)
    found = embed_classes(learner, config)
    assert found.classes == list("abcd") and found.labels.tolist() == [0, 1, 2, 1, 3]
    assert len(found.examples) == len(found.ancestors) == 4 and found.points[3].tolist() == [
        0,
        0,
        1,
    ]
    build = DATASETS.build

    def with_two_cranes(about):  # as ImageNet has
        data = build(about)
        data._metainfo = dict(data.metainfo, classes=("crane", "dog", "crane"))
        return data

    monkeypatch.setattr(DATASETS, "build", with_two_cranes)
    assert embed_classes(learner, config, "train").labels.tolist() == [0, 1, 2]


def test_recovered_hierarchy_of_known_places():
    space = Lorentz(1.0)
    # two pairs of classes: far apart, near within
    places = torch.tensor([[2.0, 0.3], [2.0, -0.3], [-2.0, 0.3], [-2.0, -0.3]])
    points = space.expmap0(places.repeat_interleave(10, 0) + 0.01 * torch.randn(40, 2))
    labels = torch.arange(4).repeat_interleave(10)
    right = recovered_hierarchy(points, labels, [("a",), ("a",), ("b",), ("b",)])
    wrong = recovered_hierarchy(points, labels, [("a",), ("b",), ("a",), ("b",)])
    assert min(right.values()) > 0.99 and max(wrong.values()) < 0
    assert recovered_groups(points, labels, [("a",), ("a",), ("b",), ("b",)]) == [1.0]
    assert recovered_groups(points, labels, [("a",), ("b",), ("a",), ("b",)]) == [0.5]
    present = labels != 1  # a class without a sample does not count
    assert recovered_groups(points[present], labels[present], [("a",), ("c",), ("b",), ("b",)]) == [
        1.0
    ]
    # one level above the other: of the three of "a" a pair keeps together, the root joins two
    above = [("a", "x"), ("a", "x"), ("a", "y"), ("b", "z")]
    assert recovered_groups(points, labels, above) == [pytest.approx((1 + 0.75 + 0.75) / 3), 1.0]


MISTAKES = {
    "embed": {
        "": "--config",
        "--config {config} --weights {weights} --model test_vit": "--config",
        "--config {config}": "--weights",
        "--config {config} --weights nowhere.pth": "'nowhere.pth'",
        "--model test_vot": "'test_vot'",
        "--model hcnn_resnet18": "'hcnn_resnet18'",
        "--model hcformer_nano": "'hcformer_nano'",
        "--model test_vit --batch 0": "--batch",
        "--model test_vit --device cuda": "finds no GPU",
    },
    "search": {
        "--gallery nowhere --model test_vit --weights {timm}": "'nowhere'",
        "--gallery {empty} --model test_vit": "has no images",
        "--gallery {data} --model test_vit -k 0": "-k",
        "--gallery {data} --model test_vit --save x.tiff": "'.tiff'",
        "--gallery {data} --model test_vit --save found": "no ending",
    },
    "hierarchy": {
        "--config configs/hcformer/hcformer-nano_cifar10.py --weights {weights}": "MetricLearner",
        "--config {config} --weights {weights} --per-class 0": "--per-class",
    },
}
SOURCES = dict(embed="{data}/cat", search="{data}/cat/0000.png", hierarchy="")


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_explained(command, learner, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(Path(__file__).parents[2])
    names = {name: learner / f"{name}.pth" for name in ("weights", "timm")}
    names |= dict(data=learner / "data", config=learner / "learner.py", empty=tmp_path)
    for words, mentioned in MISTAKES[command].items():
        line = f"metric {command} {SOURCES[command]} {words}".format(**names)
        assert main(line.split()) == 2
        assert mentioned in capsys.readouterr().err, words


def test_grey_images(learner, tmp_path):
    """Of a network that takes one channel, as its config says."""
    from mmengine.config import Config
    from mmengine.registry import MODELS

    config = Config.fromfile(learner / "learner.py")
    config.model.backbone.update(in_chans=1, pretrained=False)
    config.test_dataloader.dataset.update(channels=1)
    config.test_dataloader.dataset.transform.update(mean=(0.5,), std=(0.25,))
    config.dump(tmp_path / "grey.py")
    torch.save(dict(state_dict=MODELS.build(config.model).state_dict()), tmp_path / "grey.pth")
    embedder = load_embedder(tmp_path / "grey.py", tmp_path / "grey.pth")
    _, points = embed_sources(embedder, find_sources(learner / "data" / "cat"))
    assert points.shape[0] == 5 and points.isfinite().all()


@pytest.mark.parametrize("command", ["embed", "search"])
def test_a_config_is_also_taken_as_the_model(command, learner, tmp_path):
    """As by predict, explain and export."""
    image = str(next((learner / "data/cat").iterdir()))
    more = ["--gallery", str(learner / "data")] if command == "search" else []
    found = []
    for number, name in enumerate(("--config", "--model")):
        out = tmp_path / f"{number}.{'png' if more else 'npz'}"
        given = [name, str(learner / "learner.py"), "--weights", str(learner / "weights.pth")]
        assert main(["metric", command, image, *more, *given, "--save", str(out)]) == 0
        found.append(out.with_suffix(".csv" if more else ".npz"))
    if more:
        assert found[0].read_text() == found[1].read_text()
    else:
        first, second = map(np.load, found)
        assert np.array_equal(first["embeddings"], second["embeddings"])
        assert second["space"] == "lorentz"
