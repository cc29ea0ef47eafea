"""Words that a CLIP cannot tell apart are refused, words that it was never taught are told."""

import warnings

import numpy as np
import pytest
import torch

from hypvision.cli import main
from hypvision.clip import segment
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP, equal_pairs
from hypvision.clip.segmentation.segment import load_segmenter
from hypvision.clip.words import check_words, unknown_words
from hypvision.data.captions import NOUNS
from hypvision.data.shapes import TAXONOMY
from hypvision.errors import HypvisionError


@pytest.fixture(scope="module")
def model():
    return load_segmenter(clip="shapes-s8")


def test_the_words_of_the_training_are_known(model):
    own = [*TAXONOMY.classes["shape"], *(" ".join(words) for words in TAXONOMY.instances[::40]), *NOUNS.values()]
    assert unknown_words(model.clip, model.tokenizer, own) == []
    assert unknown_words(model.clip, model.tokenizer, ["disk", "road", "a red car", "red giraffe"]) == [
        "road",
        "red giraffe",
    ]
    assert unknown_words(model.clip, model.tokenizer, ["disk, road", "road, disk"]) == [
        "road, disk"
    ]  # the first counts
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_words(model, own[:16])


def test_a_table_without_blank_rows_knows_every_word(model):
    words = OpenVocabularyCLIP()
    words.build_clip(dict(name="shapes-s8", pretrained=None), tune="frozen", dense=False)
    assert unknown_words(words.clip, words.tokenizer, ["road", "sky"]) == []


def test_words_of_one_embedding_are_refused(model):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert equal_pairs(model.encode_classes(["disk", "road", "ring", "sky"])) == [(1, 3)]
    with pytest.raises(
        HypvisionError, match="cannot distinguish 'road' from 'sky': .*never taught 'road', 'sky'.*ViT-B-16:openai"
    ):
        check_words(model, ["car", "road", "sky"])
    with pytest.raises(HypvisionError, match="cannot distinguish 'disk' from 'Disk': .*Leave one out"):
        check_words(model, ["disk", "ring", "Disk"])
    with pytest.raises(
        HypvisionError, match=r"never taught any of the words 'road', 'traffic light'\. Two small CLIPs"
    ):
        check_words(model, ["road", "traffic light"])
    with pytest.raises(HypvisionError, match="never taught 'road'"):
        check_words(model, ["road"])


def test_a_long_list_may_have_some_twins(model):
    colours = [f"{colour} {shape}" for colour in ("red", "blue", "green") for shape in TAXONOMY.classes["shape"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_words(model, [*colours, "Red disk"])


def test_a_word_among_others_that_is_not_known_gives_a_warning(model):
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    with pytest.warns(UserWarning, match="never taught 'road': what it finds there means little") as caught:
        segment(image, ["car", "road"], model)
    assert len(caught) == 1
    with pytest.raises(HypvisionError, match="cannot distinguish"):
        segment(image, ["car", "road", "sky"], model)
    with pytest.raises(HypvisionError, match="cannot distinguish"):  # the model has not kept them
        segment(image, ["car", "road", "sky"], model)


def test_the_command_says_it_once_and_paints_nothing_wrong(tmp_path, capsys):
    from PIL import Image

    for name in "ab":
        Image.new("RGB", (96, 96)).save(tmp_path / f"{name}.png")
    words = ["clip", "segment", str(tmp_path), "--clip", "shapes-s8", "--out", str(tmp_path / "out"), "--classes"]
    assert main([*words, "car, road, sky"]) == 2
    assert "cannot distinguish 'road' from 'sky'" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*words, "car, road"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("warning: This CLIP was never taught 'road'") and said.err.count("warning") == 1
    assert "warning" not in said.out
