"""All measurements of a model on chains of texts; the command is ``hypvision clip chains``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from hypvision.checkpoints.read import read_file
from hypvision.clip.models import CLIPBundle
from hypvision.clip.spaces import Hyperboloid, Space, Sphere
from hypvision.data.preprocessing import preprocessing_of
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, Values, refuse, require_finite
from hypvision.io.files import name_of, on_disk
from hypvision.io.images import SUFFIXES, leaving_out, open_image, require_all

from .metrics import ChainMetrics, chain_metrics, kendall_tau
from .retrieval import LabelTree, hyperlex_correlation, level_accuracy, read_hyperlex, tree_recall
from .texts import distinct, embed_texts
from .traversal import Step, traverse

_Path = TypeVar("_Path")  # path of a file, or another object that ``read`` can open


@dataclass
class Measured:
    """Embeddings ``texts`` of chains ``(n, L, d)`` and ``images`` ``(m, d)``, results by name
    (``values``), and, if there are images, the ``metrics`` of each image and chain."""

    space: Space
    texts: Tensor
    images: Tensor | None = None
    values: Metrics = field(default_factory=dict)
    metrics: ChainMetrics | None = None


@torch.no_grad()
def embed_images(clip: CLIPBundle, paths: Sequence[Any]) -> Tensor:
    """Return points ``(m, d)`` in the model's space for image files, which are preprocessed for the
    model (:func:`hypvision.data.preprocessing.preprocessing_of`)."""
    return embed_readable(clip, paths, None)[1]


@torch.no_grad()
def embed_readable(
    clip: CLIPBundle,
    paths: Sequence[_Path],
    failed: list[str] | None,
    batch: int = 64,
    read: Callable[[Any], Image.Image] = open_image,
) -> tuple[list[_Path], Tensor]:
    """Return the readable images and their points as :func:`embed_images` does, ``batch`` images at
    a time; messages about unreadable images go into ``failed``. ``paths`` are files, or other
    objects that ``read`` can open.

    Raises:
        HypvisionError: no image can be read; or with ``failed=None`` some image cannot be read.
    """
    view = preprocessing_of(clip.model)
    kept: list[_Path] = []
    # None lets tqdm show a progress bar on a terminal only.
    parts = []
    hidden = True if len(paths) <= batch else None
    for start in tqdm(range(0, len(paths), batch), desc="images", leave=False, disable=hidden):
        inputs = []
        for path in paths[start : start + batch]:
            with leaving_out(str(path), failed):
                inputs.append(view(read(path)))
                kept.append(path)
        if inputs:
            parts.append(clip.embed_images(torch.stack(inputs)))
    if not parts:
        require_all(failed or [], done=0)
    found = torch.cat(parts)
    require_finite(found, lambda row: f"The embedding of the image '{kept[row]}'")
    return kept, found


def measure_chains(
    chains: Sequence[Sequence[str]],
    images: Sequence[str | None],
    texts: Tensor,
    embedded_images: Tensor | None,
    space: Space,
    steps: int = 50,
    rows: Sequence[int] = (),
) -> Measured:
    """Return the metrics of HierarCaps (:func:`~hypvision.clip.radial.metrics.chain_metrics`, which
    explains the arguments) and retrieval at each level; without embedded images only the order of
    the texts is measured. ``rows`` has each chain's row in its file, for messages."""
    depth = len(chains[0])
    rows = rows or range(1, len(chains) + 1)
    if texts.shape[:2] != (len(chains), depth):
        raise HypvisionError(
            f"The embeddings have {texts.shape[0]} chains of {texts.shape[1]} texts, but the file "
            f"of chains has {len(chains)} of {depth}. Give files that belong together."
        )
    radii = space.radius(texts)
    require_finite(
        torch.cat([texts.flatten(0, 1), radii.reshape(-1, 1)], 1),
        lambda i: (
            f"The embedding of '{chains[i // depth][i % depth]}' (row {rows[i // depth]}, level "
            f"{i % depth + 1})"
        ),
    )
    found = Measured(space, texts, embedded_images)
    if embedded_images is None:
        found.values["d_corr"] = float(kendall_tau(radii).mean())
        return found
    order = list(dict.fromkeys(images))
    if len(order) != len(embedded_images):
        lacking = "image" if len(embedded_images) > len(order) else "chain"
        row = (
            len(order) + 1
            if lacking == "image"
            else rows[list(images).index(order[len(embedded_images)])]
        )
        raise HypvisionError(
            f"There are {len(embedded_images)} images, but chains of {len(order)}: the {lacking} "
            f"in row {row} has no {'chain' if lacking == 'image' else 'image'}."
        )
    require_finite(
        embedded_images,
        lambda row: f"The embedding of the image '{order[row]}' (row {row + 1} of images)",
    )
    found.metrics = chain_metrics(chains, texts, list(images), embedded_images, space, steps)
    found.values = found.metrics.summary()
    number = {image: row for row, image in enumerate(order)}
    owners = [number[image] for image in images]
    found.values |= level_accuracy(
        chains, owners, space.scores(embedded_images, texts.flatten(0, 1))
    )
    return found


@torch.no_grad()
def rooted(clip: CLIPBundle, root: Tensor | None = None) -> Space:
    """Return the space of a CLIP model with a root. A hyperboloid has its origin. A sphere gets
    ``root`` ``(d,)``; or else the root in the model's file, which baselines of MERU may have; or
    else the embedding of the empty text."""
    space = clip.space
    if not isinstance(space, Sphere):
        return space
    if root is None and space.has_root:
        return space
    if root is None:
        root = embed_texts(clip.model, clip.tokenizer, [""])[0]
    return Sphere(F.normalize(root.to(clip.device), dim=-1))


def walk_images(
    clip: CLIPBundle,
    images: Sequence[StrPath | Image.Image],
    words: Sequence[str],
    space: Space | None = None,
    steps: int = 50,
    walk: str = "hierarcaps",
) -> list[list[Step]]:
    """Return, for each image or image file, its walk through the texts ``words``, from general to
    specific. ``space`` has a root (None: the space of :func:`rooted`); ``steps`` and ``walk`` are
    those of :func:`~hypvision.clip.radial.traversal.traverse`."""
    embedded = embed_images(clip, images)
    texts = embed_texts(clip.model, clip.tokenizer, words)
    return [traverse(image, texts, words, space or rooted(clip), steps, walk) for image in embedded]


@torch.no_grad()
def measure_clip(
    clip: CLIPBundle,
    chains: Sequence[Sequence[str]],
    images: Sequence[str | None],
    image_files: Mapping[str, Path] | None,
    root: Tensor | None = None,
    steps: int = 50,
    failed: list[str] | None = None,
) -> Measured:
    """Return :func:`measure_chains` of a CLIP model. ``image_files`` has the file of each image
    name (None: only the order of the texts is measured), and ``root`` is that of :func:`rooted`.
    Chains whose image cannot be read are left out, with a message in ``failed``; with
    ``failed=None`` such an image is an error."""
    every, rows = distinct([text for chain in chains for text in chain])
    embedded = embed_texts(clip.model, clip.tokenizer, every, where=_places(chains))
    space = rooted(clip, root)
    texts = embedded[rows].unflatten(0, (len(chains), -1))
    left = [*range(len(chains))]
    found: Tensor | None = None
    if image_files is not None:
        files = {name: image_files[name] for name in images if name is not None}
        kept, found = embed_readable(clip, [*files.values()], failed)
        readable = set(kept)
        left = [row for row, name in enumerate(images) if name and files[name] in readable]
    numbers = [row + 1 for row in left]
    chains = [chains[row] for row in left]
    images = [images[row] for row in left]
    return measure_chains(chains, images, texts[left], found, space, steps, numbers)


def _places(chains: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return for each text where it occurs first, in words."""
    found: dict[str, str] = {}
    for row, chain in enumerate(chains, 1):
        for level, text in enumerate(chain, 1):
            found.setdefault(text, f" (row {row}, level {level})")
    return found


def measure_hyperlex(
    clip: CLIPBundle, path: StrPath, space: Space, template: str = "{}"
) -> Metrics:
    """Return :func:`~hypvision.clip.radial.retrieval.hyperlex_correlation` of a CLIP model, for
    each word in the ``template``."""
    pairs = read_hyperlex(path)
    words = list(dict.fromkeys(word for pair in pairs for word in pair[:2]))
    embedded = embed_texts(clip.model, clip.tokenizer, [template.format(word) for word in words])
    return hyperlex_correlation(
        pairs, {word: row for row, word in enumerate(words)}, embedded, space
    )


def images_of_tree(folder: StrPath, tree: LabelTree) -> tuple[list[str], dict[Path, int]]:
    """Return the classes that have a folder of images in ``folder``, and the number of the class of
    each image.

    Raises:
        HypvisionError: there are no images, or the ``tree`` lacks a class.
    """
    folder = Path(folder).expanduser()
    there = [*folder.iterdir()] if folder.is_dir() else []
    classes = sorted(name_of(entry.name) for entry in there if entry.is_dir())
    label_of = {
        path: label for label, name in enumerate(classes) for path in _images_of(folder, name)
    }
    missing = next((name for name in classes if name not in tree.ancestors), None)
    refuse(
        (
            not label_of,
            f"There are no images in class folders below '{folder}'. Expected: one folder per "
            "class with its images.",
        ),
        (
            missing,
            f"The tree lacks the class '{missing}'. Add its ancestors, or leave out its folder.",
        ),
    )
    return classes, label_of


def measure_tree(
    clip: CLIPBundle,
    folder: StrPath,
    tree: LabelTree,
    template: str = "{}",
    failed: list[str] | None = None,
) -> tuple[Metrics, int]:
    """Return :func:`~hypvision.clip.radial.retrieval.tree_recall` of a CLIP model, and the number
    of images. ``folder`` has a folder of images for each class, and each class is in the ``tree``.
    The names of all nodes, put into the ``template``, are compared with the images; nodes with
    equal names count as one. Messages about unreadable images go into ``failed``; with
    ``failed=None`` such an image is an error."""
    classes, label_of = images_of_tree(folder, tree)
    nodes, lineage = _lineage(tree, classes)
    names = [template.format(name.replace("_", " ").replace("-", " ")) for name in nodes]
    texts = embed_texts(clip.model, clip.tokenizer, names)
    kept, images = embed_readable(clip, [*label_of], failed)
    similarity = clip.similarity(images, texts).cpu()
    return tree_recall(similarity, [label_of[path] for path in kept], lineage), len(label_of)


def _lineage(tree: LabelTree, classes: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Return the names of a tree's nodes, and for each class the numbers of its own node and of the
    nodes above it."""
    lines = {
        label: [tree.names.get(n, n) for n in (label, *above)]
        for label, above in tree.ancestors.items()
    }
    nodes = dict.fromkeys(name for line in lines.values() for name in line)
    number = {name: i for i, name in enumerate(nodes)}
    return [*nodes], [sorted({number[name] for name in lines[label]}) for label in classes]


def _images_of(folder: Path, name: str) -> list[Path]:
    """Return the image files of a class, from the folder with its name."""
    files = sorted((folder / on_disk(name)).rglob("*"))
    return [path for path in files if path.suffix.lower() in SUFFIXES]


def read_embeddings(path: StrPath) -> tuple[Tensor, Tensor | None, Space]:
    """Read embeddings of any model from a file, at least in float32: ``texts`` ``(n, L, d)``,
    ``images`` ``(m, d)`` if there are any, and for the space ``root`` ``(d,)`` of unit vectors, or
    the curvature ``c`` of a hyperboloid, whose points have the time first."""
    found: Plain = read_file(path)
    parts = {name: found[name] for name in _DIMS if name in found}
    whole = "texts" in parts and not {"root", "c"}.isdisjoint(found)
    shapes = [f"{name} {tuple(getattr(x, 'shape', ()))}" for name, x in found.items()]
    refuse(
        (
            not whole or not _fit(parts),
            f"'{path}' has {', '.join(shapes) or 'nothing'}. Expected: texts (n, L, d), images "
            "(m, d), root (d,) of the same d, or c.",
        )
    )
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in parts.values()), torch.float32)
    parts = {name: x.to(dtype) for name, x in parts.items()}
    if "root" in parts:
        return parts["texts"], parts.get("images"), Sphere(parts["root"])
    c = _curvature(found["c"])
    for name, x in parts.items():
        refuse(
            (
                not _is_of_curvature(x.double(), c),
                f"The {name} of '{path}' are not points of a hyperboloid with c = {found['c']}. "
                "Expected: c > 0, and as first coordinate the time, sqrt(1 / c + |x|²) of the "
                "others x.",
            )
        )
    return parts["texts"], parts.get("images"), Hyperboloid(c)


_DIMS = dict(texts=3, images=2, root=1)


def _fit(parts: Values) -> bool:
    """Return whether all parts are real tensors with the right numbers of dimensions, and with
    vectors of one length."""
    for name, x in parts.items():
        if not isinstance(x, Tensor) or x.dim() != _DIMS[name] or x.is_complex():
            return False
    return len({x.shape[-1] for x in parts.values()}) == 1


def _curvature(c: Any) -> float:
    """Return the curvature in a file as a number; 0 if it is not one number."""
    number: Any = torch.as_tensor(c).flatten() if isinstance(c, (Tensor, int, float)) else ()
    return float(number[0]) if len(number) == 1 else 0.0


def _is_of_curvature(x: Tensor, c: float) -> bool:
    """Return whether points lie on the hyperboloid of curvature c, up to a hundredth of their
    time."""
    if c <= 0:
        return False
    time = (1 / c + x[..., 1:].square().sum(-1)).sqrt()
    return not bool(((x[..., 0] - time).abs() > 0.01 * x[..., 0]).any())
