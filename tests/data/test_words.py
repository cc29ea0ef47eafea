"""Names that are written together as words."""

import pytest
from helpers.cases import each

pytest.importorskip("open_clip")
from hypvision.data.words import split_words


@each(
    "name, words",
    [
        ("itookapicture", "i took a picture"),
        ("mildlyinteresting", "mildly interesting"),
        ("AnimalsBeing_Cute", "animals being cute"),
        ("birdsofprey", "birds of prey"),
        ("1200isplenty", "1200 is plenty"),
        ("crafts", "crafts"),
        ("xqzvwk", "xqzvwk"),
        ("", ""),
    ],
)
def test_names_are_cut_into_words(name, words):
    assert split_words(name) == words
