"""Captions of a drawn scene: a chain of four true sentences from general to specific, each with a
false sentence of the same form.

    something on a grey ground | nothing on a grey ground
    a polygon                  | a round shape
    a triangle                 | a square
    a striped red triangle left of a dotted blue ring
                               | a striped red triangle right of a dotted blue ring

The form is that of the captions in HierarCaps (Alper and Averbuch-Elor, ECCV 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from .classes import with_article
from .drawing import COLOURS, TEXTURES
from .taxonomy import KINDS

T = TypeVar("T")

_GROUND = "on a grey ground"  # the word "plain" would be a texture
NOUNS = {
    "branched": "branched shape",
    "composite": "composite shape",
    "polygon": "polygon",
    "round": "round shape",
}
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


class Described(Protocol):
    """The properties of an object that captions name; ``box`` is (left, top, right, bottom) in
    pixels."""

    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> str: ...
    @property
    def texture(self) -> str: ...
    @property
    def colour(self) -> str: ...
    @property
    def box(self) -> tuple[int, int, int, int]: ...


@dataclass(frozen=True)
class Phrase:
    """Words for an object. A property that is None is not mentioned; if all are None, the words are
    "something"."""

    kind: str | None = None
    shape: str | None = None
    texture: str | None = None
    colour: str | None = None

    def matches(self, item: Described) -> bool:
        """Return whether the words are true of the object ``item``."""
        return all(
            value is None or value == getattr(item, name) for name, value in vars(self).items()
        )

    def __str__(self) -> str:
        noun = self.shape or (NOUNS[self.kind] if self.kind else None)
        if noun is None:
            return "something"
        return with_article(" ".join(word for word in (self.texture, self.colour, noun) if word))


@dataclass(frozen=True)
class Fact:
    """The statement that a scene shows ``subject``, optionally in a spatial ``relation`` to an
    object ``other``, or (``absent``) that the scene does not show ``subject``."""

    subject: Phrase
    relation: str | None = None
    other: Phrase | None = None
    absent: bool = False
    ground: bool = False  # whether the sentence mentions the grey ground, which every scene has

    def holds(self, objects: Sequence[Described]) -> bool:
        """Return whether the statement is true of a scene with these objects."""
        if self.absent:
            return not any(self.subject.matches(item) for item in objects)
        subjects = [item for item in objects if self.subject.matches(item)]
        if self.relation is None or self.other is None:
            return bool(subjects)
        others = [item for item in objects if self.other.matches(item)]
        return any(
            a is not b and _offset(a, b, self.relation) > 0 for a in subjects for b in others
        )

    def __str__(self) -> str:
        text = "nothing" if self.absent else str(self.subject)
        if self.relation is not None:
            text += f" {self.relation} {self.other}"
        return f"{text} {_GROUND}" if self.ground else text


def describe(
    rng: np.random.Generator, objects: Sequence[Described], size: tuple[int, int]
) -> tuple[list[Fact], list[Fact]]:
    """Return four true facts of a scene of ``size`` (height, width) pixels, from general to
    specific, each of which follows from the next, and four false facts that each differ from the
    true one in one point. The scene needs at least one object, and at least one kind of object that
    it lacks."""
    subject = max(
        objects, key=lambda item: (item.box[2] - item.box[0]) * (item.box[3] - item.box[1])
    )
    kinds = {item.kind for item in objects}
    shapes = {item.shape for item in objects}
    true = [
        Fact(Phrase(), ground=True),
        Fact(Phrase(kind=subject.kind)),
        Fact(Phrase(shape=subject.shape)),
        _specific(rng, subject, objects, size),
    ]
    other_kinds = [kind for kind in KINDS if kind not in kinds]
    # A missing shape of the same kind is preferred: it is harder to tell from the subject.
    siblings = [shape for shape in KINDS[subject.kind] if shape not in shapes]
    strangers = [shape for family in KINDS.values() for shape in family if shape not in shapes]
    false = [
        Fact(Phrase(), absent=True, ground=True),
        Fact(Phrase(kind=_pick(rng, other_kinds))),
        Fact(Phrase(shape=_pick(rng, siblings or strangers))),
        # A false fact always remains: the subject's looks have eight variations, more than a scene
        # has other objects that could make them true.
        _pick(rng, [fact for fact in _variations(true[3]) if not fact.holds(objects)]),
    ]
    return true, false


def _specific(
    rng: np.random.Generator,
    subject: Described,
    objects: Sequence[Described],
    size: tuple[int, int],
) -> Fact:
    """Return the fact that names the subject's shape, texture and colour and, if another object
    lies clearly to one side, the relation to that object."""
    looks = _looks(subject)
    others = [item for item in objects if item is not subject]
    for index in rng.permutation(len(others)):
        # The relation is that of the largest offset between the two boxes' centres; objects with
        # nearly the same centre have none.
        offsets = {relation: _offset(subject, others[index], relation) for relation in _OPPOSITE}
        relation = max(offsets, key=offsets.__getitem__)
        if offsets[relation] >= 0.1 * min(size):
            return Fact(looks, relation, _looks(others[index]))
    return Fact(looks, ground=True)


def _looks(item: Described) -> Phrase:
    return Phrase(shape=item.shape, texture=item.texture, colour=item.colour)


def _variations(fact: Fact) -> list[Fact]:
    """Return all facts that differ from ``fact`` in one texture, one colour or the relation."""
    found = [replace(fact, subject=looks) for looks in _other_looks(fact.subject)]
    if fact.relation is not None and fact.other is not None:
        found += [replace(fact, other=looks) for looks in _other_looks(fact.other)]
        # The opposite relation is harder to tell apart, so it makes up half of the choices.
        found += [replace(fact, relation=_OPPOSITE[fact.relation])] * len(found)
    return found


def _other_looks(looks: Phrase) -> list[Phrase]:
    found = [replace(looks, texture=texture) for texture in TEXTURES if texture != looks.texture]
    return found + [replace(looks, colour=colour) for colour in COLOURS if colour != looks.colour]


def _offset(a: Described, b: Described, relation: str) -> float:
    """Return by how many pixels the centre of ``a``'s box lies on the side ``relation`` (such as
    "left of") of the centre of ``b``'s box; negative if it lies on the other side."""
    axis = 0 if relation in ("left of", "right of") else 1
    ahead = (b.box[axis] + b.box[axis + 2] - a.box[axis] - a.box[axis + 2]) / 2
    return ahead if relation in ("left of", "above") else -ahead


def _pick(rng: np.random.Generator, choices: list[T]) -> T:
    return choices[rng.integers(len(choices))]
