"""The hierarchy against a walk over the tree that it describes."""

from collections import deque

import numpy as np
import pytest

from hypvision.data.drawing import COLOURS, OUTLINES, TEXTURES
from hypvision.data.taxonomy import KINDS, LEVELS, TAXONOMY
from hypvision.io.errors import HypvisionError

LEVEL_SIZES = dict(kind=4, shape=16, instance=384)


def tree() -> dict:
    """Neighbours of every node, built from the names alone: root - kind - shape - instance."""
    edges = [("root", kind) for kind in KINDS]
    edges += [(kind, shape) for kind, shapes in KINDS.items() for shape in shapes]
    edges += [(s, f"{t} {c} {s}") for s in OUTLINES for t in TEXTURES for c in COLOURS]
    neighbours: dict = {}
    for a, b in edges:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    return neighbours


def steps_from(start: str, neighbours: dict) -> dict[str, int]:
    """Breadth-first distances."""
    found, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_classes_and_distances(level):
    names, neighbours = TAXONOMY.classes[level], tree()
    assert len(names) == len(set(names)) == LEVEL_SIZES[level]
    assert list(names) == sorted(names)  # as folders are numbered
    distance = TAXONOMY.tree_distance(level)
    for i in range(0, len(names), 37 if level == "instance" else 1):
        steps = steps_from(names[i], neighbours)
        assert distance[i].tolist() == [steps[name] for name in names]
        assert TAXONOMY.depth(level) == steps["root"]


def test_labels_at_every_level_belong_together():
    for label, (texture, colour, shape) in enumerate(TAXONOMY.instances):
        assert TAXONOMY.instance_label(texture, colour, shape) == label
        names = [
            TAXONOMY.classes[level][TAXONOMY.ancestors(level, of="instance")[label]]
            for level in LEVELS
        ]
        kind = next(kind for kind, shapes in KINDS.items() if shape in shapes)
        assert names == [kind, shape, f"{texture} {colour} {shape}"]
    for level in LEVELS:
        assert np.array_equal(TAXONOMY.ancestors(level, of=level), np.arange(LEVEL_SIZES[level]))
    with pytest.raises(ValueError, match="read-only"):
        TAXONOMY.parents["shape"][0] = 1


def test_mistakes():
    with pytest.raises(HypvisionError, match="'kind', 'shape', 'instance', got 'colour'"):
        TAXONOMY.depth("colour")
    with pytest.raises(HypvisionError, match="Swap the two levels"):
        TAXONOMY.ancestors("instance", of="kind")
    with pytest.raises(KeyError):
        TAXONOMY.instance_label("plain", "red", "cat")
