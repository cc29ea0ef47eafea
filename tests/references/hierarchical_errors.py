"""Errors in a tree of classes (Pal et al., ICLR 2025), written from their definition: ancestors one
by one, upwards.

A tree is a dict from each node but the root to its parent. ``A`` of a class are the nodes above it,
without the class and with the root. Edges between two nodes are counted by their depths and that of
the deepest node above both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NAMES = ("tie", "lca", "jaccard", "precision", "recall")


def above(parents: Mapping[str, str], node: str) -> list[str]:
    """The nodes above a node, the nearest first."""
    found = []
    while node in parents:
        node = parents[node]
        found.append(node)
    return found


def edges(parents: Mapping[str, str], one: str, other: str) -> int:
    """The number of edges between two nodes."""
    first, second = [one, *above(parents, one)], [other, *above(parents, other)]
    for steps, node in enumerate(first):
        if node in second:
            return steps + second.index(node)
    raise ValueError("two trees")


def errors(
    parents: Mapping[str, str], predicted: Sequence[str], true: Sequence[str]
) -> dict[str, float]:
    """Means over images of :data:`NAMES`."""
    sums = [0.0] * 5
    for guess, truth in zip(predicted, true):
        a, b = above(parents, guess), above(parents, truth)
        both = sum(node in b for node in a)
        either = len(a) + len(b) - both
        values = (
            edges(parents, guess, truth),
            len(a) - both + 1,
            both / either,
            both / len(a),
            both / len(b),
        )
        sums = [total + value for total, value in zip(sums, values)]
    return {name: total / len(true) for name, total in zip(NAMES, sums)}
