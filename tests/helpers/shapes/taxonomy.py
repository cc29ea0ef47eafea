"""The hierarchy of the procedural data set: kind > shape > instance (a shape with a texture and a
colour).

The classes of every level are sorted by name. Label ``i`` of a level is therefore the class that
``torchvision.datasets.ImageFolder`` and timm number ``i`` when they sort the folders of an exported
copy, so no mapping is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError

from .drawing import COLOURS, OUTLINES, TEXTURES

LEVELS = ("kind", "shape", "instance")

# Each kind has equally many shapes, so that small data sets are balanced at every level.
KINDS = {
    "branched": ("arrow", "asterisk", "cross", "star"),
    "composite": ("car", "face", "house", "tree"),
    "polygon": ("hexagon", "pentagon", "square", "triangle"),
    "round": ("crescent", "disk", "ellipse", "ring"),
}


KIND_OF = {shape: kind for kind, shapes in KINDS.items() for shape in shapes}


@dataclass(frozen=True)
class Taxonomy:
    """A tree of classes whose leaves all lie equally deep, under one unnamed root; the classes of
    the last level are instances, named by texture, colour and shape.

    Attributes:
        levels: names of the levels, from general to specific.
        classes: for each level the names of its classes.
        parents: for each level an int64 array with entry ``i`` for class ``i``: the number of its
            parent, a class one level up (all 0, the root, at the first level).
    """

    levels: tuple[str, ...]
    classes: dict[str, tuple[str, ...]]
    parents: dict[str, np.ndarray]

    def depth(self, level: str) -> int:
        """Return the number of edges from the root to a class of ``level``."""
        one_of(self.levels, level=level)
        return self.levels.index(level) + 1

    def ancestors(self, level: str, of: str) -> np.ndarray:
        """Return, for every class of the level ``of``, the number of its ancestor at ``level``: an
        int64 array of shape (classes of ``of``,).

        Raises:
            HypvisionError: a level is unknown, or ``level`` is more specific than ``of``.
        """
        top = self.depth(level)
        bottom = self.depth(of)
        if top > bottom:
            raise HypvisionError(
                f"A class of level {of!r} has no ancestor at the more specific level {level!r}. "
                "Swap the two levels."
            )
        result = np.arange(len(self.classes[of]))
        for below in reversed(self.levels[top:bottom]):
            result = self.parents[below][result]
        return result

    def tree_distance(self, level: str) -> np.ndarray:
        """Return the number of edges on the path between every two classes of ``level``: an int64
        array (n, n), 0 on the diagonal.

        Classes that share a parent are 2 edges apart, those that share a grandparent 4, and so on:
        an ultrametric, with which the cophenetic distances of a recovered tree can be compared.
        """
        depth = self.depth(level)
        distance = np.full((len(self.classes[level]),) * 2, 2 * depth, dtype=np.int64)
        for above in self.levels[:depth]:
            ancestor = self.ancestors(above, of=level)
            distance -= 2 * (ancestor[:, None] == ancestor[None, :])
        return distance

    @cached_property
    def instances(self) -> tuple[tuple[str, str, str], ...]:
        """The words (texture, colour, shape) of every instance, in the order of the labels."""
        words = (name.split() for name in self.classes["instance"])
        return tuple((texture, colour, shape) for texture, colour, shape in words)

    def instance_label(self, texture: str, colour: str, shape: str) -> int:
        """Return the label of an instance; raise a KeyError if there is no such instance."""
        return self._label_of[texture, colour, shape]

    @cached_property
    def _label_of(self) -> dict[tuple[str, str, str], int]:
        return {words: label for label, words in enumerate(self.instances)}


def _build() -> Taxonomy:
    kinds = tuple(sorted(KINDS))
    shapes = tuple(sorted(OUTLINES))
    names = (
        f"{texture} {colour} {shape}"
        for texture in TEXTURES
        for colour in COLOURS
        for shape in shapes
    )
    instances = tuple(sorted(names))
    parents = {
        "kind": np.zeros(len(kinds), dtype=np.int64),
        "shape": np.array([kinds.index(KIND_OF[shape]) for shape in shapes], dtype=np.int64),
        "instance": np.array(
            [shapes.index(name.split()[-1]) for name in instances], dtype=np.int64
        ),
    }
    for array in parents.values():
        array.setflags(write=False)
    return Taxonomy(LEVELS, {"kind": kinds, "shape": shapes, "instance": instances}, parents)


TAXONOMY = _build()
"""The taxonomy of the procedural data set: 4 kinds, 16 shapes and 384 instances (named like
``"striped red triangle"``)."""
