"""Selection of the images of a few-shot run: the official draw of shots, and the base and new
halves of the classes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypvision.data.fewshot.splits import Item, Split, by_label
from hypvision.io.checks import at_least, ensure, one_of

SUBSETS = ("all", "base", "new")
_MOST_VAL = 4


def draw_shots(
    split: Split, shots: int, seed: int, val: bool = True, repeat: bool = False
) -> Split:
    """Return a split with ``shots`` images of each class for training and up to 4 for validation,
    drawn as the official code draws them.

    The random generator is seeded with ``seed`` (1, 2, 3); classes come in the order of their first
    image, and one stream of random numbers serves the training and then the validation images
    (unless ``val`` is False, as for ImageNet, whose validation images are the test). A class with
    fewer images gives all that it has or, with ``repeat``, ``shots`` draws with replacement, as in
    Tip-Adapter's code. Test images are all kept.
    """
    at_least(1, integer=True, shots=shots)
    generator = random.Random(seed)
    train = _draw(split.train, shots, generator, repeat)
    return Split(
        train, _draw(split.val, min(shots, _MOST_VAL), generator) if val else split.val, split.test
    )


def _draw(
    items: Sequence[Item], shots: int, generator: random.Random, repeat: bool = False
) -> list[Item]:
    def of_class(own: list[Item]) -> list[Item]:
        if len(own) >= shots:
            return generator.sample(own, shots)
        return generator.choices(own, k=shots) if repeat else own

    return [item for own in by_label(items).values() for item in of_class(own)]


def take_subset(split: Split, subset: str) -> Split:
    """Return the images of the first half of the classes (``"base"``), of the other half
    (``"new"``), or of all classes, with labels renumbered from 0.

    Of the n classes of the training images, ordered by label, the first ``ceil(n / 2)`` are base
    classes.
    """
    one_of(SUBSETS, subset=subset)
    labels = sorted({item.label for item in split.train})
    half = (len(labels) + 1) // 2
    kept = {"all": labels, "base": labels[:half], "new": labels[half:]}[subset]
    ensure(kept, f"A data set of {len(labels)} classes has no '{subset}' classes.")
    place = {label: i for i, label in enumerate(kept)}
    return Split(
        *(
            [item._replace(label=place[item.label]) for item in part if item.label in place]
            for part in split
        )
    )
