"""The classes and image size that a model was trained on, and rules for when its answer for a
picture is doubtful.

A network always answers: the detector of emoji that ships finds one with a score of 0.5 or more in
9 % of photos of groceries. No rule finds all such answers; the rules here find many and are rarely
wrong. They were measured with weights that ship, on photos of groceries and emoji
(``tools/demo_data``), and 50 pictures each of noise and of one flat colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypvision.io import Names, few
from hypvision.zoo.familiar import Familiar

from .results import Boxes, Classes, PlacedClasses, Result, Tags
from .sources import IN_MEMORY

# No class stands out if entropy / log(number of classes) is above this. Share of images above it:
# grocery classifier: 11 % of 300 test photos (it is right for 15 of these 34 and for 224 of the 266
# others), 52 % of emoji, 96 % of noise, 78 % of flat colours;
# tf_efficientnet_lite0.imagenet: 8 % of these photos, 82 % of noise, 100 % of flat colours. At 0.7:
# 20 % and 14 % of the photos. hcformer_nano.cifar10 is confident about noise (2 % above): no score
# detects this.
UNSURE = 0.75
# No object is found with confidence if the best box score of an image is below this.
# faster-rcnn_tf_efficientnet_lite0.emoji scores over 0.57 in 95 % of 100 scenes of the demo's emoji
# on photos, and below this on 91 % of the photos alone, on all noise and on all flat colours.
WEAK = 0.5
# Warn if an image is enlarged more than this to the training size. Accuracy of the grocery
# classifier (trained at 160 pixels): 72 % for photos of 96 pixels (enlarged 1.7 times), 55 % for 48
# (3.3), 24 % for 32 (5), 5 % for 16 (10); 95 % for 640. Answers of tf_efficientnet_lite0.imagenet
# (224) that equal those at 128 pixels: 75 % at 96 pixels (2.3), 39 % at 48 (4.7), 20 % at 32 (7).
ENLARGED = 4.0
# Without resizing, warn if image size / training size is outside of this range.
# faster-rcnn_tf_efficientnet_lite0.emoji finds 97 % of the objects of scenes, at half their size
# 5 %, at twice 23 %, at four times none. Segmenters are trained on crops, so images of twice their
# size are usual (CamVid: crops of 192 from 480 x 360 pixels).
SMALLEST = 0.5
LARGEST = 3.0


@dataclass(frozen=True)
class Known:
    """The classes and the image size that a model was trained on.

    Attributes:
        names: names of the model's classes; () for a model that gives embeddings.
        source: where the class names and the weights come from, in words.
        size: height and width of the training images, in pixels; None if unknown.
        resized: whether preprocessing resizes images to ``size``.
        familiar: where the features of the training images lie, class by class; None if unknown.
    """

    names: Names = ()
    source: str = ""
    size: tuple[int, int] | None = None
    resized: bool = True
    familiar: Familiar | None = None

    def __str__(self) -> str:
        # An ImageNet name lists synonyms after commas; only the first is shown.
        listed = few([name.partition(",")[0] for name in self.names], 5)
        count = (
            f"{len(self.names)} class{'es' * (len(self.names) != 1)}: {listed}"
            if self.names
            else "no classes"
        )
        size = "" if self.size is None else f"pictures of {self.size[0]} x {self.size[1]} pixels"
        about = "; ".join(filter(None, (self.source, size)))
        return f"knows {count}{f' ({about})' if about else ''}"


def doubts(result: Result, size: tuple[int, int], known: Known) -> tuple[str, ...]:
    """Return the reasons to doubt a model's result for an image of ``size`` (width, height), as
    keys of the sentences in :func:`warnings_of`, some followed by a space and a number; () if there
    is no doubt."""
    found = []
    if isinstance(result, Tags):
        if not (result.scores >= result.threshold).any():
            found.append("unlabelled")
    elif isinstance(result, PlacedClasses) and result.foreign:
        found.append(f"foreign {result.distance:.2f}")
    elif isinstance(result, Classes) and entropy(result.scores) > UNSURE:
        found.append("unsure")
    elif isinstance(result, Boxes) and max(result.scores.tolist(), default=0.0) < WEAK:
        found.append("weak")
    return (*found, *_doubts_of_size(size, known))


def _doubts_of_size(size: tuple[int, int], known: Known) -> tuple[str, ...]:
    if known.size is None:
        return ()
    scale = math.sqrt(known.size[0] * known.size[1] / (size[0] * size[1]))
    if known.resized:
        return ("small",) if scale > ENLARGED else ()
    return () if SMALLEST <= 1 / scale <= LARGEST else ("scale",)


def entropy(scores: NDArray[Any]) -> float:
    """Return the entropy of probabilities ``(C,)`` divided by that of a uniform guess, from 0 to 1;
    0 for a single class."""
    if len(scores) < 2:
        return 0.0
    positive = scores[scores > 0].astype(float)
    return float(-(positive * np.log(positive)).sum() / math.log(len(scores)))


def warnings_of(doubted: Iterable[tuple[str, Sequence[str]]], known: Known) -> list[str]:
    """Return a sentence for each reason of doubt, naming the images that it concerns. ``doubted``
    has the name of each image, or :data:`~hypvision.inference.sources.IN_MEMORY`, and its
    :func:`doubts`."""
    size = "" if known.size is None else f"{known.size[0]} x {known.size[1]} pixels"
    foreign = "perhaps the model knows nothing like it"
    limit = "" if known.familiar is None else f"{known.familiar.limit:.2f}"
    texts = dict(
        foreign="unlike anything the model was trained on: features farther from every class than "
        f"the {limit} within which 95 % of its own pictures are",
        unsure="no class stands out, the scores are near those of a guess among "
        f"{len(known.names)}: {foreign}",
        unlabelled=f"no label has a score that counts: {foreign}",
        weak=f"no box has a score of {WEAK:g} or more: {foreign}",
        small=f"enlarged more than {ENLARGED:g} times, to the {size} of the training: details are "
        "lacking",
        scale=f"far from the {size} of the training (below half or above three times their size), "
        "so that objects have another size than the model knows: resize first",
    )
    pictures: dict[str, list[tuple[str, str]]] = {}
    everything = list(doubted)
    for name, kinds in everything:
        for kind, _, number in (kind.partition(" ") for kind in kinds):
            pictures.setdefault(kind, []).append((name, f" ({number})" if number else ""))
    found = []
    for kind in (kind for kind in texts if kind in pictures):
        found.append(f"{_which(pictures[kind], len(everything))}: {texts[kind]}.")
    return found


def _which(names: Sequence[tuple[str, str]], count: int) -> str:
    """Return words for those of ``count`` images that a warning concerns: their names and
    numbers."""
    # The frames of a video share one name, which is listed once.
    files = [f"'{name}'{number}" for name, number in dict(names).items() if name != IN_MEMORY]
    listed = few(files)
    if count == 1:
        return listed or "this picture"
    return f"{len(names)} of {count} pictures" + (f" ({listed})" if listed else "")
