"""Words that a CLIP cannot tell apart are refused, words that it was never taught are told."""

import io
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hypvision.checkpoints.index import builtin_index
from hypvision.cli import main
from hypvision.clip import segment
from hypvision.clip.open_vocabulary import (
    OpenVocabularyCLIP,
    check_words,
    equal_pairs,
    lacks_words,
    unknown_words,
    warn_of_classes,
)
from hypvision.clip.segmentation.segment import load_segmenter
from hypvision.clip.towers import MANY_TEXTS, encode_by_length
from hypvision.io.errors import HypvisionError


@pytest.fixture(scope="module")
def model():
    return load_segmenter(clip="emoji-t8")


def test_the_words_of_the_training_are_known(model):
    own = list(builtin_index().get("emoji-t8.scenes").classes)
    assert unknown_words(model.clip, model.tokenizer, own) == []
    assert unknown_words(
        model.clip, model.tokenizer, ["fruit", "road", "a photo of a mammal", "red giraffe"]
    ) == ["road", "red giraffe"]
    assert unknown_words(model.clip, model.tokenizer, ["fruit, road", "road, fruit"]) == [
        "road, fruit"
    ]  # the first counts
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_words(model, own)


def test_a_table_without_blank_rows_knows_every_word(model):
    words = OpenVocabularyCLIP()
    words.build_clip(dict(name="emoji-t8", pretrained=None), tune="frozen", dense=False)
    assert unknown_words(words.clip, words.tokenizer, ["road", "sky"]) == []
    assert not lacks_words(words.clip)


def test_classes_of_a_data_set_that_a_clip_does_not_know_are_warned_of(model):
    assert lacks_words(model.clip)
    with pytest.warns(
        UserWarning,
        match=r"never taught 1 of the 3 classes of 'mine' \('road'\): .* guess.*emoji-t8",
    ):
        warn_of_classes(model.clip, model.tokenizer, ["fruit", "road", "bird"], "mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_classes(model.clip, model.tokenizer, ["fruit", "bird"], "mine")


def test_words_of_one_embedding_are_refused(model):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert equal_pairs(model.encode_classes(["fruit", "road", "bird", "sky"])) == [(1, 3)]
    with pytest.raises(
        HypvisionError,
        match="cannot distinguish 'road' from 'sky': .*never taught 'road', 'sky'.*ViT-B-16:openai",
    ):
        check_words(model, ["mammal", "road", "sky"])
    with pytest.raises(
        HypvisionError, match="cannot distinguish 'fruit' from 'Fruit': .*Leave one out"
    ):
        check_words(model, ["fruit", "bird", "Fruit"])
    with pytest.raises(
        HypvisionError, match=r"never taught any of the words 'road', 'traffic light'\. Small CLIPs"
    ):
        check_words(model, ["road", "traffic light"])
    with pytest.raises(HypvisionError, match="never taught 'road'"):
        check_words(model, ["road"])


def test_a_long_list_may_have_some_equal_names(model):
    nouns = ["face", "mammal", "bird", "fruit", "vegetable", "dish", "dessert", "animal", "bug"]
    known = [f"{kind} {noun}" for kind in ("smiling", "sleepy", "angry") for noun in nouns]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_words(model, [*known, "Sleepy fruit"])


def test_an_unknown_word_among_known_ones_gives_a_warning(model):
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    with pytest.warns(
        UserWarning, match="never taught 'road': what it finds there means little"
    ) as caught:
        segment(image, ["mammal", "road"], model)
    assert len(caught) == 1
    with pytest.raises(HypvisionError, match="cannot distinguish"):
        segment(image, ["mammal", "road", "sky"], model)
    with pytest.raises(HypvisionError, match="cannot distinguish"):  # the model has not kept them
        segment(image, ["mammal", "road", "sky"], model)


def test_the_command_warns_once_and_paints_correctly(tmp_path, capsys):
    from PIL import Image

    for name in "ab":
        Image.new("RGB", (96, 96)).save(tmp_path / f"{name}.png")
    words = f"clip segment {tmp_path} --clip emoji-t8 --out {tmp_path / 'out'} --classes".split()
    assert main([*words, "mammal, road, sky"]) == 2
    assert "cannot distinguish 'road' from 'sky'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "mammal, road"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("warning: This CLIP was never taught 'road'")
    assert said.err.count("warning") == 1
    assert "warning" not in said.out


def test_equal_pairs_of_long_lists_are_found_in_parts():
    text = F.normalize(torch.randn(3000, 1, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    text[2500], text[1023], text[1024], text[2999] = text[3], text[3], text[1022], text[2047]
    assert equal_pairs(text) == [(3, 1023), (1022, 1024), (3, 2500), (2047, 2999)]
    assert len(equal_pairs(text[:1].expand(2000, 1, 8))) == 1999  # not two million


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("count", [MANY_TEXTS, MANY_TEXTS + 1])
def test_thousands_of_texts_show_how_far_they_are(monkeypatch, count):
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    monkeypatch.setattr(
        "hypvision.clip.towers.encode_text", lambda model, tokens, embeddings: tokens
    )
    assert len(encode_by_length(torch.nn.Linear(1, 1), torch.zeros(count, 1), budget=1000)) == count
    assert ("texts: " in screen.getvalue()) == (count > MANY_TEXTS)
