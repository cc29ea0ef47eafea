"""What a model says that it knows, and the pictures that it doubts."""

import math
import warnings

import numpy as np
import pytest
from helpers.cases import each
from helpers.engine import ROOT
from PIL import Image

import hypvision
from hypvision.cli import main
from hypvision.inference import Boxes, Classes, Embedding, Known, Tags
from hypvision.inference.knowledge import doubts, entropy, warnings_of
from hypvision.inference.predictors import Request, load_predictor
from hypvision.inference.sources import IN_MEMORY

ABC = ("a", "b", "c")
EXAMPLES = ROOT / "hypvision/app/examples"
PHOTOS = ROOT / "tools/demo_data/photos/test"


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")


def boxes(*scores):
    return Boxes(np.zeros((len(scores), 4)), np.array(scores), np.zeros(len(scores), int), ABC)


def test_entropy_is_a_share_of_that_of_a_guess():
    assert entropy(np.full(7, 1 / 7)) == pytest.approx(1)
    assert entropy(np.array([1.0, 0.0, 0.0])) == 0
    assert entropy(np.array([0.5, 0.5, 0.0, 0.0])) == pytest.approx(math.log(2) / math.log(4))
    assert entropy(np.array([1.0])) == 0


@each(
    "result, expected",
    [
        (Classes(np.array([0.4, 0.3, 0.3]), ABC), ("unsure",)),
        (Classes(np.array([0.9, 0.05, 0.05]), ABC), ()),
        (Tags(np.array([0.4, 0.3, 0.3]), ABC, 0.5), ("unlabelled",)),
        (Tags(np.array([0.4, 0.6, 0.3]), ABC, 0.5), ()),
        (boxes(0.49, 0.3), ("weak",)),
        (boxes(), ("weak",)),
        (boxes(0.3, 0.51), ()),
        (Embedding(np.zeros(3)), ()),
    ],
)
def test_scores(result, expected):
    assert doubts(result, (100, 100), Known(ABC, "", (100, 100))) == expected


@each(
    "size, resized, expected",
    [
        ((24, 24), True, ("small",)),  # of 100 pixels: 4.2 times
        ((26, 26), True, ()),
        ((13, 52), True, ()),  # as many pixels
        ((3000, 2000), True, ()),
        ((48, 48), False, ("scale",)),
        ((52, 52), False, ()),
        ((290, 290), False, ()),
        ((310, 310), False, ("scale",)),
    ],
)
def test_sizes(size, resized, expected):
    sure = Classes(np.array([1.0, 0.0, 0.0]), ABC)
    assert doubts(sure, size, Known(ABC, "", (100, 100), resized)) == expected
    assert doubts(sure, size, Known(ABC)) == ()  # nothing says what it was trained on


def test_each_kind_of_doubt_is_one_sentence():
    known = Known(ABC, "x", (10, 20))
    (one,) = warnings_of([("a.jpg", ["unsure"])], known)
    assert one.startswith("'a.jpg': no class stands out") and "among 3" in one
    doubted = [(f"{i}.jpg", ["weak", "scale"] if i % 2 else []) for i in range(10)]
    weak, scale = warnings_of(doubted, known)
    assert weak.startswith("5 of 10 pictures ('1.jpg', '3.jpg', '5.jpg', ...): no box")
    assert "10 x 20 pixels" in scale
    assert warnings_of([("a.jpg", ())], known) == []


def test_pictures_without_a_file_are_not_named_in_warnings():
    known = Known(ABC)
    assert warnings_of([(IN_MEMORY, ["unsure"])], known)[0].startswith("this picture: no class")
    assert warnings_of([(IN_MEMORY, ["unsure"])] * 2, known)[0].startswith(
        "2 of 2 pictures: no class"
    )
    mixed = [(IN_MEMORY, ["unsure"]), ("a.jpg", ["unsure"]), ("b.jpg", ())]
    assert warnings_of(mixed, known)[0].startswith("2 of 3 pictures ('a.jpg'): no class")


def test_what_it_knows_in_words():
    names = ("tench, Tinca tinca", *"bcdefg")
    assert (
        str(Known(names, "a file", (4, 6)))
        == "knows 7 classes: tench, b, c, d, e, ... (a file; pictures of 4 x 6 pixels)"
    )
    assert str(Known(("a",))) == "knows 1 class: a"
    assert str(Known()) == "knows no classes"


def test_shipped_weights_doubt_images_unlike_their_training_data():
    photos = load_predictor(Request("tf_efficientnet_lite0.imagenet"))
    assert len(photos.known.names) == 1000 and photos.known.size == (224, 224)
    assert photos.known.source == "of the zoo, trained on: ImageNet-1k"
    flat = np.full((128, 128, 3), (200, 30, 90), dtype=np.uint8)
    with pytest.warns(UserWarning, match="^this picture: no class stands out"):
        (found,) = hypvision.predict(flat, photos)
    assert found.doubts == ("unsure",) and found.known is photos.known
    with pytest.warns(
        UserWarning, match="enlarged more than 4 times, to the 224 x 224 pixels of the training"
    ):
        hypvision.predict(flat[:32, :32], photos)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fruit = hypvision.predict(PHOTOS / "Banana", "himapper_tf_efficientnet_lite0.grocery")
    assert all(one.doubts == () for one in fruit)


def test_a_detector_looks_at_pictures_as_they_are():
    scene = Image.open(EXAMPLES / "scene0.jpg").resize((128, 128))
    (right,) = hypvision.predict(scene, "faster-rcnn_tf_efficientnet_lite0.emoji")
    assert right.doubts == () and not right.known.resized and right.known.size == (128, 128)
    with pytest.warns(UserWarning, match="far from the 128 x 128 pixels"):
        hypvision.predict(scene.resize((512, 512)), "faster-rcnn_tf_efficientnet_lite0.emoji")


def test_the_command_warns_on_standard_error(tmp_path, capsys):
    Image.new("RGB", (128, 128), (200, 30, 90)).save(tmp_path / "flat.png")
    words = (
        f"predict {tmp_path / 'flat.png'} --model tf_efficientnet_lite0.imagenet --out "
        f"{tmp_path / 'out'}"
    ).split()
    assert main([*map(str, words), "--max-boxes", "3"]) == 0
    said = capsys.readouterr()
    assert "knows 1000 classes: tench, goldfish" in said.out
    assert "trained on: ImageNet-1k" in said.out
    unused, unsure, unlimited = said.err.strip().splitlines()
    assert (
        unused
        == "warning: --max-boxes has no effect: tf_efficientnet_lite0.imagenet gives no boxes."
    )
    assert unlimited.startswith("note: ")
    assert unsure.startswith("warning: 'flat.png': no class stands out")
    assert "warning" not in said.out
