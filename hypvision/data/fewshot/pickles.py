"""Reader for the official code's pickles of shots, which runs none of the code that a pickle can
contain.

``split_fewshot/shot_K-seed_S.pkl`` holds ``{"train": [Datum, ...], "val": [...]}`` with absolute
paths of another machine. ``Datum``, the only class in it, is replaced by a class of ours; a file
that refers to any other object raises an error.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

from hypvision.data.classes import whole_label
from hypvision.io import HypvisionError, StrPath
from hypvision.io.files import read_bytes

from .splits import Item

_DATUM = ("dassl.data.datasets.base_dataset", "Datum")
_LARGEST = 64 * 2**20  # largest accepted size in bytes; official files have some kilobytes


class _Datum:
    """Stand-in for the official record class ``Datum``: it holds the attributes of the pickled
    state, and runs no code."""

    __slots__ = ("__dict__",)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _DATUM:
            return _Datum
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside it")


def read_pickled_shots(path: StrPath, folder: str, images: StrPath) -> dict[str, list[Item]]:
    """Return the training and validation images in an official pickle. What follows the folder name
    ``folder`` (such as ``"jpg"``) in the pickled paths is looked up in the folder ``images``."""
    path = Path(path)
    try:
        content = _content(path)
        parts = [part for part in ("train", "val") if part == "train" or part in content]
        return {part: [_item(row, folder, images) for row in content[part]] for part in parts}
    except OSError as error:
        raise HypvisionError(f"The shots '{path}' cannot be read: {error.strerror}.") from error
    except Exception as error:  # pickle raises errors of many classes for damaged files
        raise HypvisionError(
            f"The shots '{path}' are not what the official code saves, and were not read: {error}. "
            "Remove the file: the official rule draws the same shots."
        ) from error


def _content(path: Path) -> Any:
    data = read_bytes(path, _LARGEST)
    # pickle allocates a table as large as the file's largest memo index, so this number is checked
    # before.
    for operation, number, _ in pickletools.genops(data):
        if operation.name.endswith("PUT") and int(number or 0) > len(data):
            raise pickle.UnpicklingError("it remembers more objects than it has bytes")
    return _Reader(io.BytesIO(data)).load()


def _item(row: Any, folder: str, images: StrPath) -> Item:
    state = vars(row)
    parts = Path(str(state["_impath"]).replace("\\", "/")).parts
    place = len(parts) - 1 - parts[::-1].index(folder)
    if ".." in parts:
        raise ValueError("a path leads out of its folder")
    label = whole_label(state["_label"])
    if label is None:
        raise ValueError(f"the label {state['_label']!r:.60} is not an integer")
    return Item(str(Path(images, *parts[place + 1 :])), label, str(state["_classname"]))
