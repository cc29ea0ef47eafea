"""Captions and contradictions, read by a parser of their own and held against the objects of their
scenes."""

import re

import numpy as np

from hypvision.data.captions import Fact, Phrase
from hypvision.data.drawing import COLOURS, TEXTURES
from hypvision.data.shapes import make_scene
from hypvision.data.taxonomy import KINDS

NOUN = {
    "branched shape": "branched",
    "composite shape": "composite",
    "polygon": "polygon",
    "round shape": "round",
}
RELATION = re.compile(r"^(.*?) (left of|right of|above|below) (.*)$")


def subjects(words: str, scene) -> list:
    """The objects that a phrase such as "a striped red triangle" is true of."""
    if words == "something":
        return list(scene.objects)
    article, _, words = words.partition(" ")
    assert article == ("an" if words[0] in "aeiou" else "a")
    if words in NOUN:
        return [item for item in scene.objects if item.kind == NOUN[words]]
    *looks, shape = words.split()
    assert any(shape in shapes for shapes in KINDS.values())
    assert all(word in TEXTURES or word in COLOURS for word in looks) and len(looks) in (0, 2)
    return [
        item
        for item in scene.objects
        if item.shape == shape and (not looks or [item.texture, item.colour] == looks)
    ]


def is_true(sentence: str, scene) -> bool:
    """Whether a sentence is true of a scene, by its words alone."""
    sentence = sentence.removesuffix(" on a grey ground")
    if sentence == "nothing":
        return not scene.objects
    if (match := RELATION.match(sentence)) is None:
        return bool(subjects(sentence, scene))

    def centre(item):
        return np.array([item.box[0] + item.box[2], item.box[1] + item.box[3]]) / 2

    axis, sign = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}[
        match[2]
    ]
    return any(
        a is not b and sign * (centre(a) - centre(b))[axis] > 0
        for a in subjects(match[1], scene)
        for b in subjects(match[3], scene)
    )


def test_captions_are_true_and_contradictions_false():
    relations = 0
    for index in range(150):
        scene = make_scene(index, ("train", "val", "test")[index % 3], (48, 64), seed=index % 5)
        assert len(scene.captions) == len(scene.contradictions) == 4
        for caption, contradiction in zip(scene.captions, scene.contradictions):
            assert is_true(caption, scene), (caption, scene.objects)
            assert not is_true(contradiction, scene), (contradiction, scene.objects)
        relations += RELATION.match(scene.captions[3]) is not None
    assert relations > 75  # most scenes of several objects say where one lies


def test_captions_go_from_general_to_specific():
    for index in range(60):
        scene = make_scene(index, size=64)
        sets = [
            subjects(RELATION.sub(r"\1", c.removesuffix(" on a grey ground")), scene)
            for c in scene.captions
        ]
        for general, specific in zip(sets, sets[1:]):
            assert specific and all(any(item is other for other in general) for item in specific)
        assert any(noun in scene.captions[1] for noun in NOUN)
        assert len(scene.captions[3].split()) > len(scene.captions[2].split())


def test_contradictions_of_the_last_caption_differ_in_one_point():
    for index in range(60):
        scene = make_scene(index, size=64)
        true, false = scene.captions[3], scene.contradictions[3]
        if (match := RELATION.match(true)) is not None and (other := RELATION.match(false))[
            2
        ] != match[2]:
            assert (other[1], other[3]) == (match[1], match[3])
            assert {match[2], other[2]} in ({"left of", "right of"}, {"above", "below"})
        else:  # articles follow the word after them
            different = [
                (a, b)
                for a, b in zip(true.split(), false.split())
                if a != b and {a, b} != {"a", "an"}
            ]
            assert len(true.split()) == len(false.split()) and len(different) == 1
            ((a, b),) = different
            assert {a, b} <= set(TEXTURES) or {a, b} <= set(COLOURS)


def test_sentences():
    other = Phrase(None, "star", "plain", "red")
    for fact, text in (
        (Fact(Phrase(), ground=True), "something on a grey ground"),
        (Fact(Phrase(), absent=True, ground=True), "nothing on a grey ground"),
        (Fact(Phrase(kind="round")), "a round shape"),
        (Fact(Phrase(shape="asterisk")), "an asterisk"),
        (
            Fact(Phrase(None, "disk", "dotted", "orange"), "above", other),
            "a dotted orange disk above a plain red star",
        ),
    ):
        assert str(fact) == text
