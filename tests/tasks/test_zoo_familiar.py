"""What images a published classifier knows: in its file, its record and its card, and in
predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cases import each
from helpers.engine import make_images, write_config
from PIL import Image

from hypvision.checkpoints.index import builtin_index, read_index
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.records import Index
from hypvision.checkpoints.storage import read_header
from hypvision.cli import main
from hypvision.engine.run import train
from hypvision.inference.knowledge import doubts
from hypvision.inference.predictors import Request, load_predictor
from hypvision.inference.running import predict
from hypvision.io.errors import HypvisionError
from hypvision.tasks import publishing
from hypvision.zoo.cards import model_card
from hypvision.zoo.familiar import KEY, Familiar, familiar_of, in_header, of_header

DEMO = Path(__file__).parents[2] / "tools/demo_data"
GROCERY = "himapper_tf_efficientnet_lite0.grocery"
TEXTS = dict(
    description="Tiny.", intended_use="Tests.", data="Noise.", training="hypvision train x",
    limits=["Knows nothing."], licence="Apache-2.0", test_data="noise, 24 images",
)  # fmt: skip


def test_a_header_gives_the_distances_back():
    found = Familiar(torch.randn(5, 64, generator=torch.Generator().manual_seed(0)), 0.25, 0.05)
    header = json.loads(json.dumps({KEY: in_header(found)}))
    again = of_header(header)
    features = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    assert again[1:] == found[1:]
    assert (again.distances(features) - found.distances(features)).abs().max() < 0.01


@each(
    "change",
    [dict(means="no base64!"), dict(means=""), dict(means=3), dict(classes=7), dict(classes=0),
     dict(classes=True), dict(limit="0.1"), dict(limit=float("nan")), dict(false_alarms=None)],
)  # fmt: skip
def test_other_content_of_a_header_is_told(change):
    right = in_header(Familiar(torch.ones(2, 8), 0.1, 0.05))
    assert of_header({KEY: right}) is not None
    with pytest.raises(HypvisionError, match="'w.safetensors' does not say what images"):
        of_header({KEY: {**right, **change}}, "w.safetensors")
    assert of_header({}) is None


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A zoo of one tiny classifier, whose checkpoint holds what images it knows, and that."""
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data"))
    train(config, tmp_path / "work")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(publishing, "_measure", lambda *_: dict(top1=50.0))
    checkpoint = tmp_path / "work/epoch_1.pth"
    publishing.publish("config.py", checkpoint, "test_vit.noise", TEXTS, "zoo")
    return tmp_path / "zoo", familiar_of(torch.load(checkpoint, weights_only=False))


def test_publishing_keeps_it(published):
    zoo, known = published
    record = read_index(zoo).get("test_vit.noise")
    assert record.familiar.limit == pytest.approx(known.limit, abs=1e-4)
    assert "warns of an image" in model_card(record)
    assert of_header(read_header(zoo / record.file.path)).limit == known.limit


def test_a_command_adds_it_and_leaves_the_weights(published, monkeypatch, capsys):
    zoo, known = published
    before = read_index(zoo).get("test_vit.noise")
    weights = read_weights(zoo / before.file.path)
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[::2] = 255
    (zoo.parent / "stripes").mkdir()
    for number in range(3):
        Image.fromarray(stripes).save(zoo.parent / f"stripes/{number}.png")
    words = ["zoo", "familiar", "test_vit.noise", "--out", str(zoo), "--foreign"]
    assert main([*words, "stripes"]) == 2
    assert "--foreign takes DATA=FOLDER" in capsys.readouterr().err
    assert main([*words, f"black stripes={zoo.parent / 'stripes'}"]) == 0
    said = capsys.readouterr().out
    assert "rate of false alarms" in said and "black stripes: 100.0 % of 3 images" in said
    after = read_index(zoo).get("test_vit.noise")
    (foreign,) = after.familiar.foreign
    assert (foreign.data, foreign.images, foreign.noticed) == ("black stripes", 3, 1.0)
    again = read_weights(zoo / after.file.path)
    assert all(torch.equal(weights[name], value) for name, value in again.items())
    assert after.familiar.limit == pytest.approx(known.limit, abs=0.05)
    assert "of the validation data" in after.familiar.data
    assert [path.name for path in (zoo / "weights").iterdir()] == [Path(after.file.path).name]


def test_other_weights_are_refused(capsys):
    assert main(["zoo", "familiar", "emoji-s16.captions"]) == 2
    assert "is no classifier" in capsys.readouterr().err


SHIPPED = [
    record.name for record in builtin_index() if record.task == "classification"
    # ImageNet's training data are not here
    and record.name != "tf_efficientnet_lite0.imagenet"
]  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_classifiers_have_it(name):
    record = builtin_index().get(name)
    found = load_predictor(Request(name)).known.familiar
    assert found.limit == pytest.approx(record.familiar.limit, abs=1e-4)
    assert 0 <= record.familiar.false_alarms < 0.1
    assert {each.data for each in record.familiar.foreign} > {"emoji (7 styles)"}
    card = model_card(record)
    for other in record.familiar.foreign:
        assert f"{100 * other.noticed:.0f} % of {other.images} images of {other.data}" in card
    assert f"hypvision zoo familiar {name} --foreign" in card


def test_a_grocery_model_warns_of_other_kinds_and_not_of_its_photos():
    predictor = load_predictor(Request(GROCERY))
    cats = sorted((DEMO / "emoji/images").rglob("*.png"))[::6]
    own = sorted((DEMO / "photos").rglob("*.jpg"))[::10]

    def warned(files):
        results = (found.result for found in predict(files, predictor))
        return [bool(doubts(result, (640, 640), predictor.known)) for result in results]

    assert len(cats) > 9 and sum(warned(cats)) >= 0.95 * len(cats)
    assert sum(warned(own)) <= 0.2 * len(own)


@each("model", [GROCERY, "tf_efficientnet_lite0.imagenet", "emoji-s16"])
def test_weights_without_a_limit_say_so(model, tmp_path, capsys):
    photo = next((DEMO / "photos/test/Lemon").iterdir())
    option = "--clip" if model == "emoji-s16" else "--model"
    assert main(["predict", str(photo), option, model, "--out", str(tmp_path / "out")]) == 0
    said = "has no limit for familiar pictures" in capsys.readouterr().err
    assert said == (builtin_index().get(model).familiar is None) == (model != GROCERY)


def test_a_record_may_be_named_without_its_tag(tmp_path, capsys):
    photo = next((DEMO / "photos/test/Lemon").iterdir())
    words = ["--classes", "lemon, cat", "--out", str(tmp_path / "out")]
    assert main(["predict", str(photo), "--model", "emoji-s16", *words]) == 0
    assert "knows 2 classes: lemon, cat" in capsys.readouterr().out
    assert main(["zoo", "card", "emoji-s16"]) == 0
    assert "emoji-s16.captions" in capsys.readouterr().out
    index = builtin_index()
    assert index.get("emoji-s16") is index.get("emoji-s16.captions")
    one = index.get("emoji-s16")
    both = Index(dict.fromkeys(("emoji-s16.captions", "emoji-s16.scenes"), one))
    with pytest.raises(HypvisionError) as error:
        both.get("emoji-s16")
    assert all(name in str(error.value) for name in both.records)


def test_a_limit_needs_the_data_of_the_training():
    with pytest.raises(HypvisionError, match="has no training and validation data"):
        publishing.add_familiar("tf_efficientnet_lite0.imagenet", DEMO.parents[1] / "model_zoo")
