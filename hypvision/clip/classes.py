"""Class names and the sentences that they are put into.

>>> load_classes("ade150")[:2], load_classes(["cat", "dog"]), load_classes("names.txt")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from hypvision.errors import HypvisionError
from hypvision.files import parse_json, read_json, read_lines

__all__ = ["CLASS_LISTS", "TEMPLATES", "load_classes", "official_ids", "prompts"]

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

CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65", "coco116",
    "coco133",
)  # fmt: skip
"""Names of the class lists that come with the package, in the order of the data sets' labels. ``coco48`` and ``coco17``
are the base and novel classes of open-vocabulary detection on COCO (Bansal et al., ECCV 2018), ``coco65`` both;
``coco133`` are the words for COCO's panoptic classes, things first, ``coco116`` those that are not novel."""


@lru_cache(maxsize=1)
def _data() -> dict[str, list[Any]]:
    return parse_json(resources.files("hypvision.clip").joinpath("class_lists.json").read_text(encoding="utf-8"))


def official_ids(name: str) -> list[int]:
    """Label values of a data set's own annotation, in the order of our labels: ``coco171``, ``ade847`` or ``pc59``
    (there the first, 0, is the background).

    Raises:
        HypvisionError: no such table.
    """
    if name == "pc59":
        return list(_data()["pc59_ids"])
    if name not in ("coco171", "ade847"):
        raise HypvisionError(f"There is no table of ids for '{name}'. Known: coco171, ade847, pc59.")
    return [number for number, _ in _data()[name]]


def load_classes(source: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Class names from a list, a file, or a list that comes with the package.

    Args:
        source: names; the name of one of :data:`CLASS_LISTS`; a ``.txt`` file with a name a line; or a ``.json`` file
            with a list of names or a dict from names (or numbers) to numbers (or names).

    Raises:
        HypvisionError: no such list or file, no names in it, an empty one, or one that is there twice.
    """
    where = "The class list"
    if isinstance(source, (str, Path)):
        if str(source) in CLASS_LISTS:
            return tuple((row if isinstance(row, str) else row[1]).strip() for row in _data()[str(source)])
        where, names = f"The class list '{source}'", _read(Path(source).expanduser())
    elif isinstance(source, Iterable):
        names = list(source)
    else:
        raise HypvisionError(f"A class list is a list of names or a file, got {type(source).__name__}.")
    if not names:
        raise HypvisionError(f"{where} is empty. Give at least one class name.")
    if wrong := [name for name in names if not isinstance(name, str) or not name.strip()]:
        raise HypvisionError(f"{where} has an entry {wrong[0]!r}, which is not a name.")
    names = [name.strip() for name in names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise HypvisionError(f"{where} has {', '.join(map(repr, twice[:3]))} more than once. Remove what is double.")
    return tuple(names)


def _read(path: Path) -> list[Any]:
    if not path.is_file():
        raise HypvisionError(
            f"There is no class list '{path}'. Give names, a .txt or .json file, or one of {', '.join(CLASS_LISTS)}."
        )
    if path.suffix.lower() != ".json":
        return read_lines(path, "the class list")
    try:
        found = read_json(path)
    except UnicodeDecodeError as error:
        raise HypvisionError(f"The class list '{path}' is not text in UTF-8 ({error}). Save it as UTF-8.") from error
    except (OSError, ValueError) as error:
        raise HypvisionError(f"The class list '{path}' cannot be read: {error}.") from error
    if isinstance(found, dict):
        try:
            pairs = [(value, key) if isinstance(value, int) else (int(key), value) for key, value in found.items()]
        except ValueError as error:
            raise HypvisionError(
                f"The class list '{path}' is a dict with an entry that has no number. Write a list of names, or a dict "
                "from names to numbers."
            ) from error
        return [name for _, name in sorted(pairs, key=lambda pair: pair[0])]
    if not isinstance(found, list):
        raise HypvisionError(f"The class list '{path}' holds a {type(found).__name__}. Write a list of names.")
    return found


def prompts(name: str, templates: Sequence[str], synonyms: str = "first") -> list[list[str]]:
    """The sentences of one class.

    Args:
        name: may hold synonyms, as in ``"building, edifice"``.
        templates: with ``{}`` for the name.
        synonyms: ``"first"`` takes the part before the first comma, as the official code does; ``"mean"`` all of them,
            whose embeddings are averaged.

    Returns:
        For each synonym a sentence for each template.
    """
    words = [part.strip() for part in name.split(", ") if part.strip()]
    return [[template.format(word) for template in templates] for word in (words if synonyms == "mean" else words[:1])]
