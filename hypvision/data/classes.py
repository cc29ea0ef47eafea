"""Class names, prompt templates, and the sentences that a name and a template make.

>>> load_classes("ade150")[:2], load_classes(["cat", "dog"]), load_classes("names.txt")
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor

from hypvision.checkpoints.records import is_template
from hypvision.io import HypvisionError, Plain, StrPath, ensure, explaining, require, whole_number
from hypvision.io.files import parse_json, read_json, read_lines, why_no_file

TEMPLATES = {
    "catseg": ("A photo of a {} in the scene",),
    "photo": ("a photo of a {}",),
    "several": (
        "a photo of a {}",
        "a photo of the {}",
        "a close-up of a {}",
        "a cropped photo of a {}",
        "there is a {} in the scene",
        "a photo of a {} in the background",
        "a photo of one {}",
    ),
}
"""Sets of prompt templates by name; ``"catseg"`` is the one that CAT-Seg and HyperCLIP use."""

SELECTED = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Seven prompt templates for ImageNet that CLIP's authors chose by sequential forward selection."""

CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65",
    "coco116", "coco133",
)  # fmt: skip
"""Names of the class lists that come with the package; each list is in the order of its data set's
labels. ``coco48`` and ``coco17`` are the base and novel classes of open-vocabulary detection on
COCO (Bansal et al., ECCV 2018), ``coco65`` both together; ``coco133`` are the names of COCO's
panoptic classes, things first, ``coco116`` those of them that are not among the novel classes."""


SUFFIXES = (".txt", ".json")  # suffixes of files with class names
# A longer list is refused, since CLIP must embed each name; WordNet's nouns are 82,115.
MAX_CLASSES = 100_000


@lru_cache(maxsize=1)
def _data() -> dict[str, list[Any]]:
    return parse_json(
        resources.files("hypvision.data").joinpath("class_lists.json").read_text(encoding="utf-8")
    )


def official_ids(name: str) -> list[int]:
    """Return the label values that a data set's own annotation files use, in the order of our
    labels. ``name`` is ``coco171``, ``ade847`` or ``pc59``, whose first value, 0, is the
    background; or ``ade150_stuff``, for the classes of ADE20K's 150 that are stuff."""
    tables = {"pc59": "pc59_ids"} | {key: key for key in ("coco171", "ade847", "ade150_stuff")}
    ensure(name in tables, f"There is no table of ids for '{name}'. Known: {', '.join(tables)}.")
    return [row if isinstance(row, int) else row[0] for row in _data()[tables[name]]]


def whole_label(value: Any) -> int | None:
    """Convert a label from a file (``3``, ``"3"`` or ``3.0``) to an integer; return None if it is
    not a whole number."""
    if isinstance(value, str):
        return whole_number(value.strip())
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


def numbered(names: Iterable[Any]) -> dict[Any, int]:
    """Return the number of each name, counted from 0."""
    return {name: number for number, name in enumerate(names)}


def check_classes(
    pairs: Iterable[tuple[Any, Any]], where: str, remedy: str, shared_names: bool = False
) -> dict[Any, str]:
    """Return the class names by label, from pairs of a label and a name; a pair may occur several
    times. Raise an error if a label has two names, or a name two labels (which ``shared_names``
    allows, since two pairs of ImageNet's classes share a name). ``where`` (the source, such as "The
    class list 'names.txt'") and ``remedy`` are parts of the message."""
    names: dict[Any, str] = {}
    for label, name in pairs:
        if not isinstance(name, str) or not name.strip():
            raise HypvisionError(f"{where} has an entry {name!r}, which is not a name. {remedy}")
        if names.setdefault(label, name) != name:
            raise HypvisionError(
                f"{where} calls the label {label} both '{names[label]}' and '{name}'; a label has "
                f"one name. {remedy}"
            )
    labels: Plain = {}
    for label, name in names.items():
        if labels.setdefault(name, label) != label and not shared_names:
            raise HypvisionError(
                f"{where} has '{name}' more than once, for the labels {labels[name]} and {label}, "
                f"which the name cannot distinguish. {remedy}"
            )
    return names


def warn_of_equal_texts(names: Sequence[str], tokens: Tensor) -> None:
    """Warn of classes whose prompts have equal ``tokens`` (C, L): their names are equal, or differ
    only after the last token that CLIP reads."""
    first: dict[tuple[int, ...], int] = {}
    same = [(first.setdefault(tuple(row), k), k) for k, row in enumerate(tokens.tolist())]
    same = [pair for pair in same if pair[0] != pair[1]]
    if same:
        a, b = same[0]
        warnings.warn(
            f"The classes {a} ('{names[a]:.60}') and {b} ('{names[b]:.60}') have the same text of "
            f"{tokens.shape[1]} tokens ({len(same)} such pairs), so CLIP cannot tell them apart. "
            "Give them names that differ within these tokens.",
            stacklevel=3,
        )


def load_classes(source: StrPath | Sequence[str]) -> tuple[str, ...]:
    """Return class names from a sequence, from a file, or from a list that comes with the package.

    Args:
        source: a sequence of names; the name of one of :data:`CLASS_LISTS`; ``"imagenet"``,
            open_clip's 1,000 names in the order of the labels, of which two pairs are equal; a
            ``.txt`` file with one name a line; or a ``.json`` file with a list of names, or a dict
            from names to numbers or from numbers to names.
    """
    where = "The class list"
    if isinstance(source, (str, Path)):
        if str(source) == "imagenet":
            return tuple(require("open_clip", "clip").IMAGENET_CLASSNAMES)
        if str(source) in CLASS_LISTS:
            return tuple(
                (row if isinstance(row, str) else row[1]).strip() for row in _data()[str(source)]
            )
        where = f"The class list '{source}'"
        pairs = _read(Path(source).expanduser())
    elif isinstance(source, Iterable):
        pairs = list(enumerate(source))
    else:
        raise HypvisionError(
            f"A class list is a list of names or a file, got {type(source).__name__}."
        )
    ensure(pairs, f"{where} is empty. Give at least one class name.")
    ensure(
        len(pairs) <= MAX_CLASSES,
        f"{where} has {len(pairs):,} names, more than {MAX_CLASSES:,}. Give only the names "
        "of things that the images may show.",
    )
    stripped = ((label, name.strip() if isinstance(name, str) else name) for label, name in pairs)
    names = check_classes(
        stripped, where, "Remove duplicates, and give every class a name of its own."
    )
    return tuple(names[label] for label in sorted(names))


def split_classes(text: str, where: str) -> list[str]:
    """Return the names in a text, which commas or line breaks separate as in CSV; a name in double
    quotes may contain both.

    >>> split_classes('"cat, black", dog', "The list")
    ['cat, black', 'dog']
    """
    with explaining(
        lambda error: f"{where} is not CSV ({error}): {text!r:.80}. Close the quotes of each name.",
        csv.Error,
    ):
        rows = list(csv.reader(text.splitlines(), skipinitialspace=True, strict=True))
    names = [name.strip() for row in rows for name in row if name.strip()]
    joined = next((name for name in names if ";" in name), None)
    if joined is not None:
        raise HypvisionError(
            f"{where} has '{joined:.80}': names are separated by commas or line breaks, not by "
            "semicolons. Write commas."
        )
    return names


def _read(path: Path) -> list[tuple[Any, Any]]:
    """Return pairs of a label and a class name, read from a .txt or .json file."""
    advice = f"Give names, a .txt or .json file, or one of imagenet, {', '.join(CLASS_LISTS)}."
    ensure(os.path.isfile(path), f"{why_no_file(path, 'class list')} {advice}")
    ensure(
        path.suffix.lower() in SUFFIXES,
        f"The file '{path}' cannot be a class list: its suffix is '{path.suffix}'. {advice}",
    )
    if path.suffix.lower() != ".json":
        return list(enumerate(read_lines(path, "the class list")))
    found = read_json(path, unique=True)
    if isinstance(found, list):
        return list(enumerate(found))
    ensure(
        isinstance(found, dict),
        f"The class list '{path}' holds a {type(found).__name__}, not a list or dict. Write a "
        "list of names.",
    )
    by_number = all(isinstance(value, str) for value in found.values())
    pairs = [(key, value) if by_number else (value, key) for key, value in found.items()]
    wrong = [(label, name) for label, name in pairs if whole_label(label) is None]
    if wrong:
        raise HypvisionError(
            f"The class list '{path}' is a dict with an entry that has no number: "
            f"{wrong[0][0]!r:.60} stands beside '{wrong[0][1]}'. Write a list of names, or a dict "
            "from names to whole numbers."
        )
    return [(whole_label(label), name) for label, name in pairs]


def with_article(words: str) -> str:
    """Return the words with their indefinite article: ``"orange ring"`` becomes ``"an orange
    ring"``."""
    return f"{'an' if words[0].lower() in 'aeiou' else 'a'} {words}"


def enumerated(names: Sequence[str]) -> str:
    """Return names as an enumeration in English: ``("dog face", "banana", "orange")`` becomes ``"a
    dog face, a banana and an orange"``."""
    *most, last = map(with_article, names)
    return f"{', '.join(most)} and {last}" if most else last


def prompts(name: str, templates: Sequence[str], synonyms: str = "first") -> list[list[str]]:
    """Return the prompts of one class: a list for each synonym in ``name``, with one sentence for
    each template.

    For a name with synonyms such as ``"building, edifice"``, ``"first"`` uses only the part before
    the first comma, as the official code does; ``"mean"`` uses all synonyms, for callers that
    average the embeddings.
    """
    words = [part.strip() for part in name.split(", ") if part.strip()]
    return [
        [template.format(word) for template in templates]
        for word in (words if synonyms == "mean" else words[:1])
    ]


def checked_templates(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Return the templates for a name in :data:`TEMPLATES`, for one
    template, or for several."""
    if isinstance(templates, str):
        templates = TEMPLATES.get(templates, [templates])
    found = tuple(templates)
    wrong = [template for template in found if not is_template(template)]
    if wrong or not found:
        raise HypvisionError(
            f"Every prompt template needs one {{}} for the class name and no other braces, got "
            f"{wrong}. There are no other names of prompt templates than "
            f"{', '.join(TEMPLATES)}."
        )
    return found


def imagenet_templates(count: int = 60) -> tuple[str, ...]:
    """Return the first ``count`` of CLIP's 80 prompt templates for ImageNet; PromptSRC uses 60."""
    known = require("open_clip", "clip").OPENAI_IMAGENET_TEMPLATES
    ensure(
        1 <= count <= len(known),
        f"The number of templates must be from 1 to {len(known)}, got {count}.",
    )
    return tuple(template("{}") for template in known[:count])
