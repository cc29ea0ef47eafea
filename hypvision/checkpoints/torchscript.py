"""Read the tensors in TorchScript archives, as OpenAI published CLIP, without running their code.

``torch.jit.save`` writes a zip archive like that of ``torch.save``, whose pickle holds modules in
place of a dict. The archive has the classes of these modules as code, which PyTorch can only run,
so its restricted reader refuses every archive that has ``constants.pkl``. Here that reader gets the
archive with this one name changed (in memory), and an object without methods in place of each
class.
"""

from __future__ import annotations

import mmap
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import Tensor

from hypvision.io import StrPath
from hypvision.io.files import read_pieces

from .pickles import open_zip
from .types import StateDict

_MARK = b"/constants.pkl"
_HIDDEN = b"/constants.hid"
# The limit for the total length of all names, which would be infinite if a module contained itself.
_LONGEST_NAMES = 2**26


class ScriptModule:
    """Replace every class of an archive: an object with the attributes of a module and no
    methods."""

    attributes: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        # A state that is no dict belongs to an object without weights.
        self.attributes = state if isinstance(state, dict) else {}


def _value(value: Any, *_: Any) -> Any:
    """Replace the functions that give a list or dict its type in TorchScript: return the value."""
    return value


def _names(path: StrPath) -> tuple[str, set[str]]:
    """Return the top folder of a PyTorch archive, and the names of the files in it."""
    with open_zip(path) as archive:
        names = archive.namelist()
    folder = names[0].partition("/")[0] if names else ""
    return folder, {name.removeprefix(f"{folder}/") for name in names}


def is_torchscript(path: StrPath) -> bool:
    """Return whether a file is a TorchScript archive of PyTorch 1.2 or newer."""
    return zipfile.is_zipfile(path) and {"data.pkl", "constants.pkl"} <= _names(path)[1]


def class_names(path: StrPath) -> set[str]:
    """Return the full names of the classes of the modules in a TorchScript archive."""
    with open_zip(path) as archive, archive.open(f"{_names(path)[0]}/data.pkl") as file:
        # PyTorch does not compress the pickle, so the file's size is a limit for it.
        pickled = bytes(read_pieces(file, Path(path).stat().st_size, path))
    used = (
        str(argument) for code, argument, _ in pickletools.genops(pickled) if code.name == "GLOBAL"
    )
    return {
        name.replace(" ", ".") for name in used if name.startswith(("__torch__ ", "__torch__."))
    }


def stand_ins(path: StrPath) -> list[tuple[Any, str]]:
    """Return the objects that replace the names in the pickle of an archive, each with the name,
    for :func:`torch.serialization.add_safe_globals`."""
    lists = (
        "build_intlist",
        "build_boollist",
        "build_doublelist",
        "build_tensorlist",
        "restore_type_tag",
    )
    return [
        *((ScriptModule, name) for name in class_names(path)),
        *((_value, f"torch.jit._pickle.{name}") for name in lists),
    ]


@contextmanager
def opened(path: StrPath) -> Iterator[mmap.mmap]:
    """Context with the archive as a file that :func:`torch.load` accepts like one of
    ``torch.save``; the file on the disk is not changed."""
    with open_zip(path) as archive:
        contents = archive.start_dir  # where the directory of the zip file begins
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = content.find(_MARK, contents)
        while place >= 0:
            content[place : place + len(_MARK)] = _HIDDEN
            place = content.find(_MARK, place)
        yield content


def script_weights(module: Any) -> StateDict:
    """Return the tensors of a module and of the modules in it, by their names in its state dict.

    Tensors that are attributes, but neither parameters nor buffers, are included, since only the
    code, which is not read, tells them apart.
    """
    found: StateDict = {}
    left = _LONGEST_NAMES
    rest = [("", module)]
    while rest:
        prefix, part = rest.pop()
        for name, value in part.attributes.items():
            full = f"{prefix}{name}"
            left -= len(full)
            if left < 0:
                raise UnpicklingError(
                    "unsupported GLOBAL __torch__ of modules that contain one another"
                )
            if isinstance(value, ScriptModule):
                rest.append((f"{full}.", value))
            elif isinstance(value, Tensor):
                found[full] = value
    return found
