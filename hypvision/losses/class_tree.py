"""A tree of classes, and the hierarchical softmax along it (Ghadimi Atigh et al., CVPR 2022,
section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.io import HypvisionError, StrPath, Values
from hypvision.io.files import read_json


class ClassTree(nn.Module):
    r"""Hierarchical softmax: log-probabilities of classes, the leaves of a tree, from a logit for
    each node.

    .. math:: \log P(k) = \sum_{i \in \{k\} \cup \mathrm{ancestors}(k)}
              \log \mathrm{softmax}_{\mathrm{siblings}(i)}(v_i)

    The leaves are the nodes 0 to K - 1, in the order of the classes; the inner nodes follow,
    breadth first, without the root. Each family of siblings has a log-softmax of its own with its
    own maximum, so that small probabilities do not vanish beside those of another family.

    Args:
        classes: names of the classes in the order of their labels.
        tree: the tree as nested dicts and lists of names, ``{"thing": {"animal": ["cat", "dog"],
            "car": []}, "sky": []}``, or a JSON file with it; the official files have it below one
            name, ``{"root": {...}}``, which is no node. None: all classes are children of the root.
        official: compute as the official code: with one maximum for all nodes and floors under the
            sums of families, and in evaluation under each conditional probability, by which a
            family far below the maximum loses its mass. For comparison.

    Attributes:
        names: names of the nodes.
        parents: for each node the number of its parent, -1 for the root.

    Shapes:
        logits ``(..., M)`` to log-probabilities ``(..., K)``.

    Raises:
        HypvisionError: the leaves are not the classes, or two nodes have the same name.
    """

    def __init__(
        self,
        classes: Sequence[str],
        tree: Values | StrPath | None = None,
        official: bool = False,
    ):
        super().__init__()
        self.official = official
        nodes = read_json(tree) if isinstance(tree, (str, Path)) else tree
        if isinstance(nodes, Mapping) and list(nodes) == ["root"]:
            nodes = nodes["root"]
        above = _parents(dict.fromkeys(classes) if nodes is None else nodes)
        inner = [name for name in above if name in set(above.values())]
        _check_leaves(classes, set(above) - set(inner))
        self.names = (*classes, *inner)
        number: dict[str | None, int] = {name: place for place, name in enumerate(self.names)}
        self.parents = [number.get(above[name], -1) for name in self.names]
        self.families: Tensor
        self.paths: Tensor
        self.register_buffer("families", self._families(), persistent=False)
        self.register_buffer("paths", self._paths(len(classes)), persistent=False)

    def _families(self) -> Tensor:
        """Return for each node the number of its family of siblings, ``(M,)``."""
        heads = sorted(set(self.parents))
        return torch.tensor([heads.index(parent) for parent in self.parents])

    def _paths(self, leaves: int) -> Tensor:
        """Return a matrix ``(M, K)`` that is 1 where node m is leaf k or one of its ancestors, else
        0."""
        paths = torch.zeros(len(self.parents), leaves)
        for leaf in range(leaves):
            node = leaf
            while node >= 0:
                paths[node, leaf] = 1
                node = self.parents[node]
        return paths

    def forward(self, logits: Tensor) -> Tensor:
        if self.official:
            return self._with_floors(logits)
        if len(self.parents) == self.paths.shape[1]:
            return F.log_softmax(logits, -1)
        families = self.families
        shape = (*logits.shape[:-1], len(set(self.parents)))
        with torch.no_grad():
            low = logits.new_full(shape, -torch.inf)
            highest = low.scatter_reduce(-1, families.expand_as(logits), logits, "amax")
        shifted = logits - highest.index_select(-1, families)
        sums = logits.new_zeros(shape).index_add(-1, families, shifted.exp())
        conditional = shifted - sums.log().index_select(-1, families)
        return conditional @ self.paths.to(logits.dtype)

    def _with_floors(self, logits: Tensor) -> Tensor:
        """Return what the official code computes: the path's sum for its loss, and in evaluation
        the logarithm of its products of probabilities. As there, the largest logit has a gradient,
        and probabilities are at least 1e-15, in evaluation 1e-4."""
        shifted = logits - logits.amax(-1, keepdim=True)
        shape = (*logits.shape[:-1], len(set(self.parents)))
        sums = logits.new_zeros(shape).index_add(-1, self.families, shifted.exp())
        conditional = shifted - sums.clamp(min=1e-15).log().index_select(-1, self.families)
        conditional = conditional.clamp(min=math.log(1e-15 if self.training else 1e-4))
        return conditional @ self.paths.to(logits.dtype)


def _parents(tree: Values) -> dict[str, str | None]:
    """Return the name of each node's parent (None: the root), by the node's name, breadth first."""
    above: dict[str, str | None] = {}
    for name, parent in _walk(tree):
        if name in above:
            raise HypvisionError(f"The class tree has {name!r} twice. Rename one of the two.")
        above[name] = parent
    return above


def _check_leaves(classes: Sequence[str], leaves: set[str]) -> None:
    if leaves != set(classes) or len(classes) != len(leaves):
        missing = ", ".join(sorted(set(classes) - leaves)) or "none"
        more = ", ".join(sorted(leaves - set(classes))) or "none"
        raise HypvisionError(
            f"The leaves of the class tree should be the {len(classes)} classes, each once. "
            f"Missing: {missing}; not a class: {more}. Correct the tree or 'classes'."
        )


def _walk(tree: Values) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the parent's name (None: the root) of each node, breadth first."""
    level: list[tuple[str | None, Any]] = [(None, tree)]
    while level:
        below: list[tuple[str | None, Any]] = []
        for parent, children in level:
            _check_nodes(children)
            for name in children:
                yield name, parent
                if isinstance(children, Mapping) and children[name]:
                    below.append((name, children[name]))
        level = below


def _check_nodes(children: Any) -> None:
    """What stands below a node must be a mapping by names, or a list of names."""
    several = isinstance(children, (Mapping, list, tuple, set))
    if not several or not all(isinstance(name, str) for name in children):
        raise HypvisionError(
            f"The class tree has {children!r:.60}. Expected: a mapping of names to what is below "
            "them, or a list of names."
        )
