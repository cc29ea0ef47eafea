"""Two walks for an image through texts or other images, from general to specific: the walks of
HierarCaps and of MERU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypvision.clip.spaces import Space, Sphere
from hypvision.io import one_of

from .metrics import walk


class Step(NamedTuple):
    """A step of a walk: the text, or the name of an image, that the walk finds, with its distance
    from the root (``radius``) and its ``similarity`` to the image that the walk is for.
    ``threshold`` is where it first appears: the radius in HierarCaps' walk, the share of the way in
    MERU's."""

    text: str
    radius: float
    similarity: float
    threshold: float


def traverse(
    image: Tensor,
    texts: Tensor,
    words: Sequence[str],
    space: Space,
    steps: int = 50,
    walk: str = "hierarcaps",
) -> list[Step]:
    """Return the walk ``"hierarcaps"`` or ``"meru"`` for an image, from general to specific. On a
    sphere the radii are ``1 - e . r``, as in published images.

    The other arguments are those of :func:`hierarcaps_traversal`.
    """
    one_of(("hierarcaps", "meru"), walk=walk)
    if isinstance(space, Sphere):
        space = Sphere(space.root, "cosine")
    if walk == "meru":
        return meru_traversal(image, texts, words, space, steps)[::-1]
    return hierarcaps_traversal(image, texts, words, space, steps)


def hierarcaps_traversal(
    image: Tensor, texts: Tensor, words: Sequence[str], space: Space, steps: int = 50
) -> list[Step]:
    """Return the most similar texts within a growing radius, without repeats, from general to
    specific (Alper and Averbuch-Elor, ECCV 2024).

    The walk for an image ``(d,)`` chooses from N ``words`` with embeddings ``texts`` ``(N, d)``,
    within ``steps`` evenly spaced radii. The published images use the radius ``1 - e . r``:
    ``Sphere(root, "cosine")``.
    """
    similarity = space.similarity(image[None], texts)[0]
    radii = space.radius(texts)
    thresholds = np.linspace(float(radii.min()), float(radii.max()), steps)
    return _changes(
        walk(similarity[None], radii, steps)[0].tolist(), thresholds, similarity, radii, words
    )


def meru_traversal(
    image: Tensor,
    texts: Tensor,
    words: Sequence[str],
    space: Space,
    steps: int = 50,
    cones: bool | None = None,
    end: Tensor | None = None,
) -> list[Step]:
    """Return the texts most similar to each of ``steps`` points on the way from the image to the
    root, each once, from specific to general (Desai et al., "Hyperbolic Image-Text
    Representations", ICML 2023).

    On a hyperboloid the points are evenly spaced in the tangent space at the origin; for CLIP they
    lie on the straight line and are normalised. The root is added to the texts as "[ROOT]".
    ``texts`` may also be images, with their names as ``words``, as in HyCoCLIP's walks (Pal et al.,
    ICLR 2025). With ``cones``, texts whose entailment cone does not contain a point are left out
    there (the cone of the root contains every point); None: on a hyperboloid but not for CLIP, as
    in the official code. ``end`` ``(d,)`` is the last point of the walk, such as another image;
    None: the root.
    """
    points = space.way(image, steps, end)
    root = space.way(image, 2)[-1:]
    similarity = space.similarity(points, texts)
    if cones or (cones is None and not isinstance(space, Sphere)):
        inside = torch.stack([space.entails(texts, p.expand_as(texts)) for p in points])
        similarity = similarity.masked_fill(~inside, -math.inf)
    similarity = torch.cat([similarity, space.similarity(points, root)], dim=1)
    texts = torch.cat([texts, root])
    words = [*words, "[ROOT]"]
    first: dict[int, float] = {}
    for number, share in zip(similarity.argmax(1).tolist(), np.linspace(0, 1, steps)):
        first.setdefault(number, share)
    return _changes(
        list(first),
        list(first.values()),
        space.similarity(image[None], texts)[0],
        space.radius(texts),
        words,
    )


def _changes(
    nearest: Sequence[int],
    thresholds: Iterable[float],
    similarity: Tensor,
    radii: Tensor,
    words: Sequence[str],
) -> list[Step]:
    path: list[Step] = []
    for number, threshold in zip(nearest, thresholds):
        if not path or path[-1].text != words[number]:
            path.append(
                Step(
                    words[number], float(radii[number]), float(similarity[number]), float(threshold)
                )
            )
    return path
