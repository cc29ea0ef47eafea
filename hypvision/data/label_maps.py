"""Images and their label maps: which belong together, and the classes of a label map's pixels."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError
from hypvision.io.images import (
    SUFFIXES,
    image_kind,
    image_size,
    is_hidden,
    is_image,
    read_labels,
    why_no_image,
)

LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm")
"""Endings of label maps; the others change numbers."""


# Which files


def files_below(root: str | Path, usage: Usage, kind: str) -> list[Path]:
    """The files of a folder and below it, also behind links; ``usage`` counts images (as ``kind``)
    hidden or there twice."""
    folders = [Path(root)]
    links = list[Path]()
    seen = set[str]()
    found = list[Path]()
    while folders or links:  # links last, so that a file is found under its own path first
        folder = folders.pop() if folders else links.pop()
        real = os.path.realpath(folder)
        if real in seen:
            usage.leave_out("folders", "a link to a folder that is read already", folder)
            continue
        seen.add(real)
        for entry in os.scandir(folder):
            path = folder / entry.name
            if is_hidden(entry.name):
                hidden = (
                    sum(map(is_image, path.rglob("*"))) if entry.is_dir() else int(is_image(path))
                )
                if hidden:
                    usage.leave_out(kind, "hidden", path, hidden)
            elif entry.is_dir():
                (links if entry.is_symlink() else folders).append(path)
            elif entry.is_file():
                found.append(path)
    return sorted(found, key=str)


class _Named:
    """The files of a folder by their name without the ending, e.g. ``"_leftImg8bit.png"``, or one
    of the ``others``, of which those further to the left are preferred."""

    def __init__(
        self, files: Iterable[Path], root: str | Path, suffix: str, others: Sequence[str] = ()
    ):
        self.suffix = suffix
        tail, _, ending = suffix.rpartition(".")
        self.endings = list(dict.fromkeys([f".{ending}".lower(), *others]))
        self.found: dict[str, list[Path]] = {}
        self.rest: list[Path] = []
        for path in files:
            name, ending = os.path.splitext(path.relative_to(root).as_posix())
            if ending.lower() in self.endings and name.endswith(tail):
                self.found.setdefault(name.removesuffix(tail), []).append(path)
            else:
                self.rest.append(path)
        for paths in self.found.values():
            paths.sort(
                key=lambda path: (
                    not path.name.endswith(suffix),
                    self.endings.index(path.suffix.lower()),
                )
            )


def find_pairs(
    images: str | Path,
    maps: str | Path | None,
    usage: Usage,
    suffixes: tuple[str, str] = (".jpg", ".png"),
    exact: tuple[bool, bool] = (False, False),
    names: Sequence[str] | None = None,
) -> list[tuple[str, str]]:
    """The images of a folder, each with the label map of the same name in the folder ``maps``,
    which may be the same one, or "" without ``maps``; ``usage`` counts the rest. Endings may be in
    any case and, unless ``exact``, of any format, of label maps the lossless ones. ``names``: the
    files to take, without suffix; None: all."""
    if not os.path.isdir(images):
        raise HypvisionError(
            f"There are no images in '{images}': there is no such folder. Check data_root."
        )
    flat = maps is not None and os.path.realpath(images) == os.path.realpath(maps)
    # with a list, files that it does not name are not reported
    walked = Usage(images) if names is not None else usage
    files = files_below(images, walked, "images")
    pictures = _Named(files, images, suffixes[0], () if exact[0] else sorted(SUFFIXES))
    labelled = maps is not None and os.path.isdir(maps)
    others = (
        files
        if flat
        else files_below(maps, walked, "label maps")
        if maps is not None and labelled
        else []
    )
    labels = _Named(others, maps or images, suffixes[1], () if exact[1] else LOSSLESS)

    pairs: list[tuple[str, str]] = []
    lonely: list[Path] = []
    for name in sorted(pictures.found) if names is None else names:
        if name not in pictures.found and os.path.splitext(name)[1].lower() in pictures.endings:
            name = os.path.splitext(name)[0]  # some lists have names with suffix
        if name not in pictures.found:
            raise HypvisionError(
                f"The list of images names '{name}', but there is no image "
                f"'{Path(images, name + suffixes[0])}'. Put it there, or remove the name from the "
                "list."
            )
        image = pictures.found[name][0]
        partner = next((path for path in labels.found.get(name, ()) if path != image), None)
        if partner is not None or not labelled:
            pairs.append(
                (
                    str(image),
                    str(partner or Path(maps, name + suffixes[1])) if maps is not None else "",
                )
            )
        else:
            lonely.append(image)
    if flat and not pairs:  # a folder with images only
        pairs = [(str(path), str(path.with_suffix(suffixes[1]))) for path in lonely]
        lonely = []
    used = {path for pair in pairs for path in pair}
    usage.use("images", len(pairs))
    for path in lonely:
        if str(path) not in used:
            usage.leave_out("images", "no label map", path)
    if names is None:
        _count_rest(usage, pictures, labels, used, flat)
    if not pairs and lonely:
        raise HypvisionError(
            _no_label_map(lonely[0], Path(images), Path(maps or ""), suffixes, others)
        )
    if not pairs:
        raise HypvisionError(
            f"There are no images in {usage} Check data_root, data_prefix and img_suffix."
        )
    return sorted(pairs) if names is None else pairs


def _count_rest(
    usage: Usage, pictures: _Named, labels: _Named, used: Collection[str], flat: bool
) -> None:
    for paths in pictures.found.values():
        for path in paths[1:]:
            if str(path) not in used:
                usage.leave_out("images", f"'{paths[0].name}' has its name", path)
    for path in pictures.rest:
        if str(path) not in used and (is_image(path) or not flat):
            known = path.suffix.lower() in pictures.endings
            reason = why_no_image(path.name) or f"suffix {path.suffix}"
            usage.leave_out("images", f"not *{pictures.suffix}" if known else reason, path)
    if not flat:
        for paths in labels.found.values():
            for path in paths:
                if str(path) not in used:
                    usage.leave_out("label maps", "no image", path)


def _no_label_map(
    image: Path, images: Path, maps: Path, suffixes: tuple[str, str], others: list[Path]
) -> str:
    stem = image.relative_to(images).as_posix().removesuffix(image.suffix)
    text = f"The image '{image}' has no label map; expected '{maps / (stem + suffixes[1])}'."
    like = [path for path in others if path.relative_to(maps).as_posix().startswith(stem)]
    if not like:
        return (
            f"{text} No other image has one either. Check data_prefix and seg_map_suffix "
            "(docs/data.md)."
        )
    if like[0].suffix.lower() in SUFFIXES.difference(LOSSLESS):
        return (
            f"{text} '{like[0]}' cannot be a label map: {like[0].suffix} changes the numbers. Save "
            "it as PNG."
        )
    return (
        f"{text} If '{like[0]}' is it, set "
        f"seg_map_suffix='{like[0].relative_to(maps).as_posix()[len(stem) :]}'."
    )


# What is in them


def check_size(
    path: str | Path, shape: Sequence[int], image: str | Path, expected: Sequence[int]
) -> None:
    """Raise an error if the ``shape`` (height, width) of the label map ``path`` differs from the
    ``expected`` one of its ``image`` as displayed.
    """
    if tuple(shape[:2]) == tuple(expected[:2]):
        return
    turned = os.path.isfile(image) and image_size(image) == tuple(shape[:2])
    remedy = "Replace one of them, or remove both from the data."
    if turned:
        remedy = (
            "The camera's mark (EXIF) turns the image, and its label map was drawn before: turn "
            "the label map, or save the image without the mark."
        )
    raise HypvisionError(
        f"The label map '{path}' is {shape[1]} x {shape[0]} pixels, but its image '{image}' has "
        f"{expected[1]} x {expected[0]}. {remedy}"
    )


def read_label_map(path: str | Path) -> np.ndarray:
    """The numbers (H, W) of the pixels: integers as they are stored, of any depth."""
    labels = read_labels(path)
    # drop an alpha channel if all pixels are opaque
    if labels.ndim == 3 and labels.shape[2] == 2 and (labels[..., 1] == 255).all():
        labels = labels[..., 0]
    if labels.ndim != 2:
        grey = labels.shape[2] > 2 and (labels[..., :1] == labels[..., :3]).all()
        remedy = "Save one of them, they are equal" if grey else "Save it in mode L, P or I;16"
        raise HypvisionError(
            f"The label map '{path}' is a coloured image: it has several channels (shape "
            f"{labels.shape}). A label map has one number a pixel. {remedy}. If its colours stand "
            "for classes, a training reads it as it is, with rgb_masks=True and their palette in "
            "the data set (docs/own-data.md)."
        )
    if labels.dtype.kind == "f":
        whole = np.nan_to_num(labels, nan=0.5, posinf=0.5, neginf=0.5)
        odd = whole != np.rint(whole)
        if odd.any():
            raise HypvisionError(
                f"The label map '{path}' has the number {labels[odd][0]:g}, which is not a class "
                "number. Class numbers are whole: save it with 8 or 16 bits a pixel."
            )
        labels = whole.astype(np.int32)
    return labels.astype(np.uint8) if labels.dtype == bool else labels


def read_colours(
    path: str | Path,
    palette: Sequence[Sequence[int]],
    ignored: Collection[Sequence[int]] = (),
    strict: bool = True,
) -> np.ndarray:
    """The classes of a mask whose colours stand for them, by the ``palette`` of the classes: int32
    (H, W), and -1 for what does not count: ``ignored`` colours, and unless ``strict`` all others.
    The mask may be coloured, grey, black and white, or have a palette of its own."""
    mode = image_kind(path)[1]
    if mode.startswith(("I", "F")):
        raise HypvisionError(
            f"The mask '{path}' has Pillow's mode {mode}, which has no colours. Save it as an RGB "
            "image of 8 bits, or leave out rgb_masks if its numbers are those of the classes."
        )
    known = np.array([*palette, *ignored], dtype=np.int64) @ (65536, 256, 1)
    labels = np.array([*range(len(palette)), *[-1] * len(ignored)], dtype=np.int32)
    order = np.argsort(known)
    codes = read_labels(path, "mask", "RGB").astype(np.int64) @ (65536, 256, 1)
    places = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
    right = known[order][places] == codes
    if strict and not right.all():
        row, column = np.argwhere(~right)[0]
        code = int(codes[row, column])
        why = (
            "JPEG changes colours: save masks as PNG"
            if image_kind(path)[0] == "JPEG"
            else "Correct the mask"
        )
        raise HypvisionError(
            f"The mask '{path}' has the colour {(code >> 16, code >> 8 & 255, code & 255)}, first "
            f"in row {row}, column {column} ({(~right).sum()} pixels of such colours), which no "
            f"class has in the palette. {why}, add the colour to the palette, or set "
            "rgb_masks='ignore', so that such pixels do not count."
        )
    return np.where(right, labels[order][places], -1)


def labels_of(info: dict[str, Any], last_is_ignored: bool = True) -> np.ndarray:
    """The classes of the pixels, int32 (H, W), as a data set of mmseg describes them by
    ``seg_map_path``, ``img_path`` and more; ``colours``: arguments of :func:`read_colours` and
    ``ignore_index``. With ``reduce_zero_label``, 255 is ignored like 0, unless ``last_is_ignored``
    is False, as for lists of more than 254 classes."""
    path = info.get("seg_map_path")
    image = info.get("img_path")
    if path is None:
        raise HypvisionError(
            f"The image '{image}' has no label map, because its data set has no folder of them. "
            "Set data_prefix=dict(img_path=..., seg_map_path=...)."
        )
    if image is not None and not os.path.exists(path):
        raise HypvisionError(
            f"The label map '{path}' of the image '{image}' does not exist. Put it there, or "
            "remove the image from the data (see docs/data.md for the layout)."
        )
    ignored = 255
    unknown = None
    colours = info.get("colours")
    if colours:
        ignored = colours["ignore_index"]
        labels = read_colours(
            path, **{key: colours[key] for key in colours if key != "ignore_index"}
        )
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
