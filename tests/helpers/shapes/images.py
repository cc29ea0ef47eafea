"""Procedural images with a real hierarchy: single objects for classification, scenes for
segmentation and detection.

An image shows coloured, textured shapes on a soft grey ground (:data:`TAXONOMY`, :data:`PARTS`).
Sample ``index`` of a split is drawn from a random stream of its own, seeded by (seed, split,
index).

    >>> train = ShapesClassification("train", length=1000, size=64, level="shape")
    >>> image, label = train[0]                      # a PIL image and an int
    >>> scene = ShapesScenes("val", length=100, size=128)[0]
    >>> scene.semantic, scene.boxes
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from hypvision.data.masks import box_of
from hypvision.io.checks import at_least, between, one_of

from .drawing import COLOURS, TEXTURES, Sprite, Stamp, add_noise, draw_background, rasterise
from .taxonomy import KIND_OF, KINDS, TAXONOMY, Taxonomy  # noqa: F401 - Taxonomy is public here

VERSION = 1
"""Goes up when the same seed draws other images than before."""

SPLITS = ("train", "val", "test")
BACKGROUND = 0
"""Label of the ground in semantic maps; class ``i`` of the taxonomy has the label ``i + 1``
there."""

MIN_SIZE = 32
MAX_OBJECTS = 5
_MIN_RADIUS = 5.0  # pixels; smaller shapes cannot be recognised
_MIN_PERIOD = 4.0  # pixels; a finer texture would blur to one colour
_MIN_VISIBLE = 0.5  # least visible share of an object's pixels
_STREAMS = {"order": 0, "attributes": 1, "object": 2, "scene": 3}


def _stream(seed: int, split: str, name: str, *index: int) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), _STREAMS[name], *index])


# Single objects
# --------------------------------------------------------------------------------------------------


def make_object(
    index: int, split: str = "train", size: int | tuple[int, int] = 64, seed: int = 0
) -> tuple[np.ndarray, int]:
    """Draw sample ``index`` of the classification data: one object, large, anywhere in the image;
    arguments as of :class:`ShapesClassification`.

    Returns:
        The image, uint8 (height, width, 3), and its instance label; :meth:`Taxonomy.ancestors`
        leads to other levels. Counted from 0, each run of 16 samples shows every shape once, each
        run of 384 every instance once.
    """
    split, (height, width), seed, index = _check(split, size, seed, index)
    label = _instance_label(seed, split, index)
    texture, colour, shape = TAXONOMY.instances[label]
    rng = _stream(seed, split, "object", index)
    canvas = draw_background(rng, height, width)
    sprite = _random_sprite(
        rng, shape, texture, colour, min(height, width) * rng.uniform(0.28, 0.44), height, width
    )
    rasterise(sprite, height, width).blend(canvas)
    return add_noise(rng, canvas), label


@lru_cache(maxsize=64)
def _shape_order(seed: int, split: str, block: int) -> tuple[str, ...]:
    """The 16 shapes in random order, such that every 4 of them in turn are of different kinds."""
    rng = _stream(seed, split, "order", block)
    table = rng.permuted(np.array(list(KINDS.values())), axis=1)  # (kinds, shapes per kind)
    return tuple(str(shape) for shape in rng.permuted(table.T, axis=1).ravel())


@lru_cache(maxsize=256)
def _attribute_order(seed: int, split: str, shape: int, epoch: int) -> tuple[tuple[str, str], ...]:
    """The 24 pairs of texture and colour in random order: those of one shape in turn."""
    pairs = [(texture, colour) for texture in TEXTURES for colour in COLOURS]
    return tuple(
        pairs[i] for i in _stream(seed, split, "attributes", epoch, shape).permutation(len(pairs))
    )


def _instance_label(seed: int, split: str, index: int) -> int:
    shapes = TAXONOMY.classes["shape"]
    block, place = divmod(index, len(shapes))
    shape = _shape_order(seed, split, block)[place]
    epoch, turn = divmod(block, len(TEXTURES) * len(COLOURS))
    texture, colour = _attribute_order(seed, split, shapes.index(shape), epoch)[turn]
    return TAXONOMY.instance_label(texture, colour, shape)


def _random_sprite(
    rng, shape: str, texture: str, colour: str, radius: float, height: int, width: int
) -> Sprite:
    composite = shape in KINDS["composite"]  # a house stands upright; a hexagon may have any angle
    return Sprite(
        shape=shape,
        texture=texture,
        colour=colour,
        x=rng.uniform(radius, width - radius),
        y=rng.uniform(radius, height - radius),
        radius=radius,
        angle=rng.uniform(-math.pi / 9, math.pi / 9)
        if composite
        else rng.uniform(-math.pi, math.pi),
        period=max(_MIN_PERIOD, radius * rng.uniform(0.35, 0.55)),
        grain=rng.uniform(-math.pi, math.pi),
        phase=(rng.random(), rng.random()),
        lighter=bool(rng.integers(2)),
        tint=tuple(rng.uniform(-14, 14, 3)),
    )


# Scenes
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene. ``box`` is (left, top, right, bottom) in pixels around its visible
    part, right and bottom exclusive; ``area`` counts its visible pixels."""

    kind: str
    shape: str
    texture: str
    colour: str
    box: tuple[int, int, int, int]
    area: int

    @property
    def name(self) -> str:
        """Such as ``striped red triangle``."""
        return f"{self.texture} {self.colour} {self.shape}"

    def label(self, level: str = "shape") -> int:
        """Label of the object at a level of the taxonomy, from 0."""
        instance = TAXONOMY.instance_label(self.texture, self.colour, self.shape)
        return int(TAXONOMY.ancestors(level, of="instance")[instance])


@dataclass(frozen=True)
class Scene:
    """An image of one to five objects with its complete annotation. H, W: height and width; N:
    number of objects.

    Attributes:
        image: the image, RGB.
        objects: the N objects, from back to front.
        instances: uint8 (H, W), 0 on the ground, ``i + 1`` where object ``i`` is visible.
        parts: uint8 (H, W), 0 or the number of the part (``PARTS[number - 1]``) of a composite
            shape.
    """

    image: Image.Image
    objects: tuple[SceneObject, ...]
    instances: np.ndarray
    parts: np.ndarray

    @property
    def masks(self) -> np.ndarray:
        """Visible pixels of each object: bool (N, H, W); no two overlap."""
        return (
            self.instances[None]
            == np.arange(1, len(self.objects) + 1, dtype=np.uint8)[:, None, None]
        )

    @property
    def boxes(self) -> np.ndarray:
        """Tight boxes of the visible objects: float32 (N, 4), left, top, right, bottom, the last
        two exclusive."""
        return np.array([item.box for item in self.objects], dtype=np.float32).reshape(-1, 4)

    def labels(self, level: str = "shape") -> np.ndarray:
        """Label of each object at ``level``, from 0: int64 (N,)."""
        return np.array([item.label(level) for item in self.objects], dtype=np.int64)

    def semantic_at(self, level: str) -> np.ndarray:
        """Semantic map at ``level``: uint16 (H, W), :data:`BACKGROUND` on the ground, label + 1 on
        objects."""
        return np.concatenate([[BACKGROUND], self.labels(level) + 1]).astype(np.uint16)[
            self.instances
        ]

    @property
    def semantic(self) -> np.ndarray:
        """Semantic map at the level of shapes: uint8 (H, W), 0 on the ground, 1 to 16 on
        objects."""
        return self.semantic_at("shape").astype(np.uint8)


def make_scene(
    index: int, split: str = "train", size: int | tuple[int, int] = 128, seed: int = 0
) -> Scene:
    """Draw scene ``index``: one to five objects that may overlap, with masks, boxes and parts.

    At least half of every object stays visible, objects lie wholly inside the image, and one kind
    is always missing. Arguments and errors as for
    :func:`make_object`.
    """
    split, (height, width), seed, index = _check(split, size, seed, index)
    rng = _stream(seed, split, "scene", index)
    canvas = draw_background(rng, height, width)
    kinds = rng.permutation(list(KINDS))[:-1]
    shapes = [shape for kind in kinds for shape in KINDS[kind]]
    sprites: list[Sprite] = []
    instances = np.zeros((height, width), dtype=np.uint8)
    parts = np.zeros((height, width), dtype=np.uint8)
    full: list[int] = []  # pixels of each object without occlusion
    for _ in range(int(rng.integers(1, MAX_OBJECTS + 1))):
        shape, texture, colour = (
            str(rng.choice(words)) for words in (shapes, TEXTURES, list(COLOURS))
        )
        radius = max(_MIN_RADIUS, min(height, width) * rng.uniform(0.12, 0.24))
        free = _random_sprite(rng, shape, texture, colour, radius, height, width)
        sprite = _place(rng, sprites, free, height, width)
        if sprite is None:
            continue
        stamp = rasterise(sprite, height, width)
        if _hides_too_much(stamp, instances, full):
            continue
        sprites.append(sprite)
        full.append(int(stamp.inside.sum()))
        stamp.blend(canvas)
        instances[stamp.window][stamp.inside] = len(sprites)
        parts[stamp.window][stamp.inside] = stamp.parts[stamp.inside]
    objects = tuple(
        _scene_object(sprite, instances == number) for number, sprite in enumerate(sprites, start=1)
    )
    image = Image.fromarray(add_noise(rng, canvas))
    return Scene(image, objects, instances, parts)


def _place(rng, sprites: list[Sprite], sprite: Sprite, height: int, width: int) -> Sprite | None:
    """Move the sprite to where its circle overlaps others by a little at most; None if no such
    place is found."""
    for _ in range(20):
        if all(
            math.hypot(sprite.x - s.x, sprite.y - s.y) > 0.75 * (sprite.radius + s.radius)
            for s in sprites
        ):
            return sprite
        r = sprite.radius
        sprite = replace(sprite, x=rng.uniform(r, width - r), y=rng.uniform(r, height - r))
    return None


def _hides_too_much(stamp: Stamp, instances: np.ndarray, full: list[int]) -> bool:
    """Whether painting the stamp would leave an earlier object less than half visible."""
    visible = np.bincount(instances.ravel(), minlength=len(full) + 1)
    hidden = np.bincount(instances[stamp.window][stamp.inside], minlength=len(full) + 1)
    return any(
        visible[i] - hidden[i] < _MIN_VISIBLE * pixels for i, pixels in enumerate(full, start=1)
    )


def _scene_object(sprite: Sprite, mask: np.ndarray) -> SceneObject:
    looks = (sprite.shape, sprite.texture, sprite.colour)
    return SceneObject(KIND_OF[sprite.shape], *looks, box_of(mask), int(mask.sum()))


# Data sets
# --------------------------------------------------------------------------------------------------


class ShapesClassification(Dataset):
    """Single objects with their class, in the manner of torchvision's data sets.

    Args:
        split: ``train``, ``val`` or ``test``; they never share an image.
        length: number of samples; classes are balanced (see :func:`make_object`).
        size: side, or (height, width), in pixels; at least 32.
        seed: an integer from 0 to 2**32 - 1; each seed gives another data set.
        level: ``kind`` (4 classes), ``shape`` (16) or ``instance`` (384).
        transform: applied to the PIL image.

    Attributes:
        classes: names of the classes at ``level``, in the order of the labels.
        taxonomy: the :class:`Taxonomy`.
    """

    def __init__(
        self,
        split: str = "train",
        length: int = 1000,
        size: int | tuple[int, int] = 64,
        seed: int = 0,
        level: str = "shape",
        transform: Callable[[Image.Image], Any] | None = None,
    ):
        self.split, self.size, self.seed, self.length = _check(split, size, seed, length, "length")
        self.taxonomy = TAXONOMY
        self.level = level
        self.transform = transform
        self._to_level = TAXONOMY.ancestors(level, of="instance")
        self.classes = TAXONOMY.classes[level]
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        """(image, label)."""
        array, instance = make_object(range(self.length)[index], self.split, self.size, self.seed)
        image = Image.fromarray(array)
        return image if self.transform is None else self.transform(image), int(
            self._to_level[instance]
        )

    @cached_property
    def targets(self) -> list[int]:
        """The label of every sample at ``level``, without drawing anything; samplers need it."""
        return [
            int(self._to_level[_instance_label(self.seed, self.split, i)])
            for i in range(self.length)
        ]


class ShapesScenes(Dataset):
    """Scenes as :class:`Scene`, for segmentation, detection and image-text learning.

    Args:
        split, length, size, seed: as for :class:`ShapesClassification`.
        transform: applied to the :class:`Scene`; turns it into the input of a model.

    Attributes:
        classes: names of the shapes; a semantic map holds their label + 1 (0 is the ground).
        taxonomy: the :class:`Taxonomy`.
    """

    def __init__(
        self,
        split: str = "train",
        length: int = 1000,
        size: int | tuple[int, int] = 128,
        seed: int = 0,
        transform: Callable[[Scene], Any] | None = None,
    ):
        self.split, self.size, self.seed, self.length = _check(split, size, seed, length, "length")
        self.taxonomy = TAXONOMY
        self.classes = TAXONOMY.classes["shape"]
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        scene = make_scene(range(self.length)[index], self.split, self.size, self.seed)
        return scene if self.transform is None else self.transform(scene)


# Checks
# --------------------------------------------------------------------------------------------------


def _check(
    split: str, size: int | tuple[int, int], seed: int, number: int, name: str = "index"
) -> tuple[str, tuple[int, int], int, int]:
    """The arguments that all of the above take, checked and in plain types."""
    one_of(SPLITS, split=split)
    sides = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
    at_least(MIN_SIZE, integer=True, height=sides[0], width=sides[1])
    between(0, 2**32 - 1, integer=True, seed=seed, **{name: number})
    return split, (int(sides[0]), int(sides[1])), int(seed), int(number)
