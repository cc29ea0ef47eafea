"""The sentences and words of a checkpoint, which anybody may have written."""

from helpers.cases import each

from hypvision.checkpoints import language
from hypvision.checkpoints.language import KEY, Language, language_of, written


def checkpoint(**texts):
    return {"meta": {KEY: texts}}


def test_what_is_written_is_read():
    found = Language(("a photo of a {}.", "{}"), ("cat", "black dog"))
    assert language_of({"meta": {KEY: written(found)}}) == found


@each("words", ["cat", [1], ["\x1b]0;title\x07"], {"cat": 1}, None])
def test_words_that_are_none_are_left_out(words):
    assert language_of(checkpoint(templates=["a {}"], words=words)) == Language(("a {}",))


@each("sentence", ["a cat", "{} {}", "{0.x}", "a\n{}\x1b[2J"])
def test_sentences_that_are_none_are_left_out(sentence):
    assert language_of(checkpoint(templates=[sentence], words=["cat"])) == Language((), ("cat",))


def test_too_many_are_left_out(monkeypatch):
    monkeypatch.setattr(language, "_MOST", 3)
    assert language_of(checkpoint(words=["a"] * 3)).words == ("a",) * 3
    assert language_of(checkpoint(words=["a"] * 4)).words == ()
