"""Images and their label maps: the search for pairs that belong together, and the classes of a
label map's pixels."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hypvision.io import HypvisionError, Plain, StrPath, refuse, some
from hypvision.io.images import (
    SUFFIXES,
    image_kind,
    image_size,
    is_hidden,
    is_image,
    read_labels,
    why_no_image,
)

from .usage import Usage, composed

LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm")
"""Suffixes of formats for label maps; lossy formats such as JPEG would change the label numbers."""


# Finding images and their label maps


def files_below(root: StrPath, usage: Usage, kind: str) -> list[Path]:
    """Return the files in a folder and below, also behind links, sorted; ``usage`` counts as left
    out, under the name ``kind``, the images that are hidden, and the folders that a second link
    leads to."""
    # Links stand first in this list and so are read last: a file that both a link and its own
    # folder lead to then counts under its own path.
    folders = [Path(root)]
    seen = set[str]()
    found = list[Path]()
    while folders:
        folder = folders.pop()
        real = os.path.realpath(folder)
        if real in seen:
            usage.leave_out("folders", "a link to a folder that is read already", folder)
            continue
        seen.add(real)
        for entry in os.scandir(folder):
            path = folder / entry.name
            if is_hidden(entry.name):
                hidden = [file for file in (path, *path.rglob("*")) if is_image(file)]
                usage.leave_out(kind, "hidden", path, len(hidden))
            elif entry.is_dir():
                folders.insert(0 if entry.is_symlink() else len(folders), path)
            elif entry.is_file():
                found.append(path)
    return sorted(found, key=str)


class _Named:
    """The files of a folder by their name without the ``suffix``, e.g. ``"_leftImg8bit.png"``;
    instead of the suffix's file ending they may have one of ``others``, of which the first is
    preferred."""

    def __init__(
        self, files: Iterable[Path], root: StrPath, suffix: str, others: Sequence[str] = ()
    ):
        self.suffix = suffix
        self.files = list(files)
        tail, _, ending = suffix.rpartition(".")
        self.endings = list(dict.fromkeys([f".{ending}".lower(), *others]))
        self.found: dict[str, list[Path]] = {}
        self.rest: list[Path] = []
        for path in self.files:
            name, ending = os.path.splitext(path.relative_to(root).as_posix())
            if ending.lower() in self.endings and name.endswith(tail):
                self.found.setdefault(composed(name.removesuffix(tail)), []).append(path)
            else:
                self.rest.append(path)
        for paths in self.found.values():
            paths.sort(key=self._rank)

    def _rank(self, path: Path) -> tuple[bool, int]:
        return not path.name.endswith(self.suffix), self.endings.index(path.suffix.lower())

    def known(self, name: str) -> str:
        """Return the key in ``found`` of a name from a list of images, in which some lists include
        the file ending."""
        name = composed(name)
        stem, ending = os.path.splitext(name)
        return stem if name not in self.found and ending.lower() in self.endings else name

    def why_left_out(self, path: Path) -> str:
        """Return the reason why a file is not one of those with the suffix, for the counts of
        files."""
        if path.suffix.lower() in self.endings:
            return f"not *{self.suffix}"
        return why_no_image(path.name) or f"suffix {path.suffix}"


def find_pairs(
    images: StrPath,
    maps: StrPath | None,
    usage: Usage,
    suffixes: tuple[str, str] = (".jpg", ".png"),
    exact: tuple[bool, bool] = (False, False),
    names: Sequence[str] | None = None,
) -> list[tuple[str, str]]:
    """Return pairs of paths: each image of a folder with the label map of the same name in the
    folder ``maps`` (which may be the same folder), or with "" if there is no ``maps``; ``usage``
    counts the files that are left out. File endings may be in any case and, unless ``exact``, of
    any image format (for label maps any lossless one). ``names`` lists the files to take, without
    suffix; None: all."""
    refuse((not os.path.isdir(images), f"There is no folder '{images}'. Check data_root."))
    flat = maps is not None and os.path.realpath(images) == os.path.realpath(maps)
    # If a list names the images, the other files of the folder are left out on purpose, so they
    # are not reported.
    walked = Usage(images) if names is not None else usage
    pictures, labels = _images_and_maps(images, maps, flat, walked, suffixes, exact)
    chosen = _chosen(names, pictures, Path(images))
    pairs, lonely = _paired(chosen, pictures, labels, maps, flat)
    usage.use("images", len(pairs))
    rest = [("images", "no label map", path) for path in lonely]
    if names is None:
        rest += _rest(pictures, labels, flat)
    _count_left_out(usage, rest, pairs)
    if not pairs:
        nothing = f"There are no images in {usage} Check data_root, data_prefix and img_suffix."
        raise HypvisionError(
            _no_label_map(lonely[0], Path(images), Path(maps or ""), labels) if lonely else nothing
        )
    return sorted(pairs) if names is None else pairs


def _images_and_maps(
    images: StrPath,
    maps: StrPath | None,
    flat: bool,
    usage: Usage,
    suffixes: tuple[str, str],
    exact: tuple[bool, bool],
) -> tuple[_Named, _Named]:
    """Return the images and the label maps in the two folders of :func:`find_pairs`; ``flat`` says
    that the two are the same folder."""
    files = files_below(images, usage, "images")
    others = files
    if not flat:
        others = files_below(maps, usage, "label maps") if maps and os.path.isdir(maps) else []
    pictures = _Named(files, images, suffixes[0], () if exact[0] else sorted(SUFFIXES))
    labels = _Named(others, maps or images, suffixes[1], () if exact[1] else LOSSLESS)
    return pictures, labels


def _chosen(names: Sequence[str] | None, pictures: _Named, folder: Path) -> list[str]:
    """Return the names of the images to take: those of the list ``names``, which must exist, or
    all."""
    if names is None:
        return sorted(pictures.found)
    chosen = [pictures.known(name) for name in names]
    missing = [name for name in chosen if name not in pictures.found][:1]
    paths = [str(folder / (name + pictures.suffix)) for name in missing]
    advice = "Put it there, or remove the name from the list."
    sentence = f"The list of images names {some(missing)}, but there is no {some(paths)}. {advice}"
    refuse((missing, sentence))
    return chosen


def _paired(
    chosen: Sequence[str], pictures: _Named, labels: _Named, maps: StrPath | None, flat: bool
) -> tuple[list[tuple[str, str]], list[Path]]:
    """Return the pairs of image and label map, and the images without a label map."""
    pairs: list[tuple[str, str]] = []
    lonely: list[Path] = []
    no_folder = not maps or not os.path.isdir(maps)
    for name in chosen:
        image = pictures.found[name][0]
        partners = [path for path in labels.found.get(name, ()) if path != image]
        if partners:
            pairs.append((str(image), str(partners[0])))
        elif no_folder:
            pairs.append((str(image), str(Path(maps, name + labels.suffix)) if maps else ""))
        else:
            lonely.append(image)
    if flat and not pairs:  # the folder has images only, so their label maps do not exist yet
        return [(str(path), str(path.with_suffix(labels.suffix))) for path in lonely], []
    return pairs, lonely


def _count_left_out(
    usage: Usage, rest: Iterable[tuple[str, str, Path]], pairs: Iterable[tuple[str, str]]
) -> None:
    used = set(chain(*pairs))
    for kind, reason, path in rest:
        if str(path) not in used:
            usage.leave_out(kind, reason, path)


def _rest(pictures: _Named, labels: _Named, flat: bool) -> Iterator[tuple[str, str, Path]]:
    """Yield (kind, reason, path) of the files that are left out unless they are part of a pair."""
    for paths in pictures.found.values():
        for path in paths[1:]:
            yield "images", f"'{paths[0].name}' has its name", path
    for path in pictures.rest:
        if is_image(path) or not flat:
            yield "images", pictures.why_left_out(path), path
    if not flat:
        for path in chain(*labels.found.values()):
            yield "label maps", "no image", path


def _no_label_map(image: Path, images: Path, maps: Path, labels: _Named) -> str:
    stem = image.relative_to(images).as_posix().removesuffix(image.suffix)
    text = f"The image '{image}' has no label map; expected '{maps / (stem + labels.suffix)}'."
    names = sorted(path.relative_to(maps).as_posix() for path in labels.files)
    like = [name for name in names if name.startswith(stem)]
    return (
        f"{text} There is {some(like or names, 3)}. Set seg_map_suffix to what follows the image's "
        "name there, or correct data_prefix. JPEG changes the numbers: save label maps as PNG."
    )


# Reading label maps


def check_size(
    path: StrPath, shape: Sequence[int], image: StrPath, expected: Sequence[int]
) -> None:
    """Raise an error if the ``shape`` (height, width) of the label map ``path`` is not
    ``expected``, the shape of its ``image`` as it is displayed."""
    if tuple(shape[:2]) == tuple(expected[:2]):
        return
    remedy = "Replace one of them, or remove both from the data."
    if os.path.isfile(image) and image_size(image) == tuple(shape[:2]):
        remedy = (
            "The camera's EXIF mark turns the image, but the label map was drawn on the image "
            "before it was turned: turn the label map, or save the image without the mark."
        )
    raise HypvisionError(
        f"The label map '{path}' is {shape[1]} x {shape[0]} pixels, but its image '{image}' has "
        f"{expected[1]} x {expected[0]}. {remedy}"
    )


def read_label_map(path: StrPath) -> np.ndarray:
    """Return the numbers (H, W) of a label map's pixels as they are stored: integers of any
    depth."""
    labels = read_labels(path)
    # An alpha channel in which all pixels are opaque carries no information.
    if labels.ndim == 3 and labels.shape[2] == 2 and (labels[..., 1] == 255).all():
        labels = labels[..., 0]
    advice = "save one channel in mode L, P or I;16"
    refuse(
        (
            labels.ndim != 2,
            f"The label map '{path}' is a coloured image: it has several channels (shape "
            f"{labels.shape}), but a label map has one number a pixel. If the channels are equal, "
            f"{advice}. If colours stand for classes, a training reads it as it is, with "
            "rgb_masks=True and their palette in the data set (docs/own-data.md).",
        )
    )
    if labels.dtype.kind == "f":
        whole = np.nan_to_num(labels, nan=0.5, posinf=0.5, neginf=0.5)
        odd = labels[whole != np.rint(whole)][:1]
        where = f"The label map '{path}' has the number {odd}, which is no class number"
        refuse((odd.size, f"{where}. Save whole numbers, with 8 or 16 bits a pixel."))
        labels = whole.astype(np.int32)
    return labels.astype(np.uint8) if labels.dtype == bool else labels


def read_colours(
    path: StrPath,
    palette: Sequence[Sequence[int]],
    ignored: Collection[Sequence[int]] = (),
    strict: bool = True,
) -> np.ndarray:
    """Return the classes int32 (H, W) of a mask in which colours stand for classes, by the
    ``palette`` of the classes; -1 for pixels that do not count: those of ``ignored`` colours and,
    unless ``strict``, those of all colours outside the palette. The mask may be an image in colour,
    grey or black and white, or have a palette of its own."""
    form, mode = image_kind(path)
    advice = "Save it as RGB, or leave out rgb_masks if its numbers are those of the classes."
    no_colours = f"The mask '{path}' has Pillow's mode {mode}, which has no colours. {advice}"
    refuse((mode.startswith(("I", "F")), no_colours))
    known = np.array([*palette, *ignored], dtype=np.int64) @ (65536, 256, 1)
    labels = np.array([*range(len(palette)), *[-1] * len(ignored)], dtype=np.int32)
    order = np.argsort(known)
    codes = read_labels(path, "mask", "RGB").astype(np.int64) @ (65536, 256, 1)
    places = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
    right = known[order][places] == codes
    if strict and not right.all():
        row, column = np.argwhere(~right)[0]
        code = int(codes[row, column])
        why = "JPEG changes colours: save masks as PNG" if form == "JPEG" else "Correct the mask"
        raise HypvisionError(
            f"The mask '{path}' has the colour {(code >> 16, code >> 8 & 255, code & 255)}, first "
            f"in row {row}, column {column} ({(~right).sum()} pixels of such colours), which no "
            f"class has in the palette. {why}, add the colour to the palette, or set "
            "rgb_masks='ignore', so that such pixels do not count."
        )
    return np.where(right, labels[order][places], -1)


def labels_of(info: Plain, last_is_ignored: bool = True) -> np.ndarray:
    """Return the classes of an image's pixels, int32 (H, W), from mmseg's description ``info`` of
    the image (``seg_map_path``, ``img_path``, ...); its entry ``colours`` holds arguments of
    :func:`read_colours` and ``ignore_index``. With ``reduce_zero_label``, 255 is ignored like 0,
    unless ``last_is_ignored`` is False, as for lists of more than 254 classes."""
    path: Any = info.get("seg_map_path")
    image = info.get("img_path")
    refuse(
        (
            path is None,
            f"The image '{image}' has no label map, because its data set has no folder of them. "
            "Set data_prefix=dict(img_path=..., seg_map_path=...).",
        ),
        (
            image is not None and not os.path.exists(path or ""),
            f"The label map '{path}' of the image '{image}' does not exist. Put it there, or "
            "remove the image from the data (see docs/data.md for the layout).",
        ),
    )
    ignored = 255
    unknown = None
    if info.get("colours"):
        colours = dict(info["colours"])
        ignored = colours.pop("ignore_index")
        labels = read_colours(path, **colours)
        unknown = labels < 0
    else:
        labels = read_label_map(path).astype(np.int32)
        if info.get("reduce_zero_label"):
            unknown = (labels == 0) | ((labels == 255) & last_is_ignored)
            labels = labels - 1
    if image is not None and "ori_shape" in info:
        check_size(path, labels.shape, image, info["ori_shape"])
    label_map = info.get("label_map")
    if label_map:
        table = np.arange(max(label_map) + 1, dtype=np.int32)
        table[list(label_map)] = list(label_map.values())
        inside = (labels >= 0) & (labels < len(table))
        labels = np.where(inside, table[labels.clip(0, len(table) - 1)], labels)
    return labels if unknown is None else np.where(unknown, ignored, labels)
