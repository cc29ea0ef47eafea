"""A checkpoint names the sentences and class words of its training, and every entry point that
turns class names into sentences says them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("mmdet")
pytest.importorskip("mmseg")

from helpers import open_vocabulary, open_vocabulary_segmentation
from helpers.chains import make_chains
from helpers.fewshot_layouts import coop
from helpers.open_vocabulary import SMALL
from helpers.shapes.images import TAXONOMY
from mmengine.config import Config

from hypvision.app.answers import Answers
from hypvision.checkpoints.language import KEY, Language, language_of, written
from hypvision.cli import main
from hypvision.clip.models import create_clip
from hypvision.clip.prompting import build_host
from hypvision.clip.radius import text_radii
from hypvision.clip.segmentation.segment import segment
from hypvision.clip.tokenizer import Tokenizer
from hypvision.data.chains import write_chains
from hypvision.engine.hooks import take_templates
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.inference.predictors import Request, load_predictor
from hypvision.inference.running import predict
from hypvision.tasks.few_shot_recipes import few_shot_config
from hypvision.zoo.export_clip import clip_tower

PECULIAR = "lo, a {} on grey!!"
WORDS = tuple(f"small {name}" for name in TAXONOMY.classes["shape"])
CONTRAST = SMALL / "clip.py"
DETECTOR = "hyperclip-det.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the checkpoints of four trainings of one step, and their configs."""
    folder = tmp_path_factory.mktemp("language")
    options = {
        "model.templates": [PECULIAR],
        "model.classes": list(WORDS),
        "train_dataloader.batch_size": 4,
        "val_dataloader.dataset.length": 2,
        "test_dataloader.dataset.length": 2,
        "train_cfg.max_iters": 1,
        "train_cfg.val_interval": 10,
        "default_hooks.checkpoint.interval": 1,
    }
    train(CONTRAST, folder / "contrast", cfg_options=options)
    own = dict(root=str(coop(folder / "data", "mine")), dataset="mine", shots=2, size=64)
    few = few_shot_config(
        "zeroshot", **own, epochs=1, classes=3, images=6, clip=dict(name="emoji-t8")
    )
    few["model"]["templates"] = PECULIAR
    Config(few).dump(folder / "few.py")
    train(folder / "few.py", folder / "few")
    data = open_vocabulary_segmentation.make_folder(folder / "scenes")
    plain = open_vocabulary_segmentation.config(data)
    plain.dump(folder / "segmenter.py")
    train(folder / "segmenter.py", folder / "segmenter", cfg_options={"model.templates": PECULIAR})
    change = {"model.templates": [PECULIAR], "train_cfg.max_iters": 1, "val_interval": 5}
    train(open_vocabulary.small(DETECTOR, change), folder / "detector")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(
        folder / "photo.png"
    )
    return folder


def checkpoint(place, name):
    [found] = (place / name).glob("[ei]*_[12].pth")
    return found


@pytest.fixture
def said(monkeypatch):
    """The texts that our tokenizer reads."""
    heard = []
    read = Tokenizer.__call__

    def listen(self, texts, context_length=None):
        heard.extend([texts] if isinstance(texts, str) else texts)
        return read(self, texts, context_length)

    monkeypatch.setattr(Tokenizer, "__call__", listen)
    return heard


@pytest.mark.parametrize("name", ["contrast", "few", "segmenter", "detector"])
def test_a_training_writes_them(place, name):
    words = dict(contrast=WORDS, segmenter=("cat", "dog", "grass")).get(name)
    found = language_of(torch.load(checkpoint(place, name), weights_only=False))
    assert found.templates[0] == PECULIAR
    assert found.words if words is None else found.words == words


def _predict(place, **request):
    return predict(place / "photo.png", load_predictor(Request(**request)))


def _hyperlex(place):
    lines = ["WORD1 WORD2 POS TYPE AVG_SCORE", "ring star N h 6", "star ring N h 1"]
    (place / "hyperlex.txt").write_text("\n".join(lines))
    write_chains(place / "chains.csv", make_chains(2))
    return ["clip", "chains", str(place / "chains.csv"), "--hyperlex", str(place / "hyperlex.txt")]


def _command(place, *words):
    assert main([*words, "--out", str(place / "out")]) == 0


def _clip(place):
    return create_clip("emoji-t8", checkpoint(place, "contrast"))


def _named(place):
    return f"emoji-t8:{checkpoint(place, 'contrast')}"


def _measure(place, name, config, options):
    measure(config, checkpoint(place, name), place / "test", cfg_options=options)


SHORT = {"test_dataloader.dataset.length": 2, "test_dataloader.batch_size": 2}
ENTRIES = {
    "predict config": lambda place: _predict(
        place, model=CONTRAST, weights=checkpoint(place, "contrast"), classes=list(WORDS)
    ),
    "predict config, no words": lambda place: _predict(
        place, model=CONTRAST, weights=checkpoint(place, "contrast")
    ),
    "predict --clip": lambda place: _command(
        place, "predict", str(place / "photo.png"), "--clip", _named(place)
    ),
    "predict few-shot": lambda place: _predict(
        place, model=place / "few.py", weights=checkpoint(place, "few"), classes=list(WORDS)
    ),
    "predict detector": lambda place: _predict(
        place, model=SMALL / DETECTOR, weights=checkpoint(place, "detector"),
        classes=list(WORDS),
    ),
    "test": lambda place: _measure(
        place, "contrast", CONTRAST, {**SHORT, "test_dataloader.dataset.length": 40}
    ),
    "test detector": lambda place: measure(
        open_vocabulary.small(DETECTOR), checkpoint(place, "detector"), place / "test"
    ),
    "test segmenter": lambda place: _measure(place, "segmenter", place / "segmenter.py", {}),
    "clip segment --clip": lambda place: _command(
        place, "clip", "segment", str(place / "photo.png"), "--clip", _named(place)
    ),
    "clip segment --weights": lambda place: _command(
        place, "clip", "segment", str(place / "photo.png"), "--classes", "ring, star",
        "--weights", str(checkpoint(place, "segmenter")), "--config", str(place / "segmenter.py"),
    ),
    "explain --clip": lambda place: _command(
        place, "explain", str(place / "photo.png"), "--clip", _named(place)
    ),
    "clip chains": lambda place: _command(place, *_hyperlex(place), "--clip", _named(place)),
    "radii": lambda place: text_radii(_clip(place), WORDS),
    "few-shot host": lambda place: build_host(_clip(place), "zeroshot").set_classes(WORDS),
    "app": lambda place: segment(
        place / "photo.png", WORDS, Answers()._segmenter(_named(place))
    ),
}  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_points_say_the_sentences_of_the_checkpoint(entry, place, said):
    ENTRIES[entry](place)
    sentences = [text for text in said if text.endswith("on grey!!")]
    assert sentences
    assert not [text for text in said if text.lower().startswith("a photo of")]


def test_an_exported_tower_names_them(place):
    assert clip_tower(_clip(place), "text")[2]["templates"] == [PECULIAR]
    assert _clip(place).words == WORDS


def test_what_the_user_asks_for_wins(place, said):
    _predict(
        place, model=CONTRAST, weights=checkpoint(place, "contrast"), classes=["ring"],
        options={"model.templates": ["my {}"]},
    )  # fmt: skip
    assert said == ["my ring"]


def test_a_config_with_other_sentences_is_told(caplog):
    content = dict(meta={KEY: written(Language((PECULIAR,)))})
    model = dict(type="CLIPContrast", templates="photo")
    take_templates(model, content)
    assert model["templates"] == [PECULIAR]
    assert "replace those of the config" in caplog.text
    radial = dict(type="RadialTuning")
    take_templates(radial, content)
    assert "templates" not in radial
