"""Check the size of pickles and zip archives in checkpoints before they are loaded.

A few bytes of a pickle can ask for gigabytes, or for tuples in tuples whose hash overflows the
stack of the process. So the instructions are counted first, without being executed.
"""

from __future__ import annotations

import os
import pickletools
import zipfile
from contextlib import AbstractContextManager
from pickle import UnpicklingError
from typing import IO, Any
from unittest.mock import patch

from torch import _weights_only_unpickler

from hypvision.io import HypvisionError, StrPath, Values

# The limit for the instructions of a small file: torch.save writes 30 for a tensor, and 119 for a
# parameter with AdamW. A larger file may have one for every six bytes; a training of parameters of
# four numbers has one for every seven.
_MOST_STEPS = 1_500_000
_DEEPEST = 100  # limit for dicts in dicts
# The limit for a small file's directory, in bytes, which is 100,000 entries; a large file may have
# an eighth of its size.
_LARGEST_DIRECTORY = 8 * 2**20
_DIRECTORY = b"PK\x05\x06"
_DIRECTORY_64 = b"PK\x06\x06"
_IN_PLACE = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


def check_pickle(file: IO[bytes], path: StrPath) -> None:
    """Raise an error for a pickle with more objects, or more deeply nested ones, than any training
    saves.

    Args:
        file: open file at the start of the pickle; afterwards it stands at the pickle's end.
        path: path of the checkpoint, for the message.

    Raises:
        HypvisionError: the pickle has too many instructions, or objects that are nested too deeply.
        ValueError, IndexError: the pickle is damaged.
    """
    # The depths of the objects on the unpickler's stack.
    depths: list[int] = []
    marks: list[int] = []
    memo: dict[Any, int] = {}
    most = max(_MOST_STEPS, os.path.getsize(path) // 6)
    for step, (code, argument, _) in enumerate(pickletools.genops(file)):
        before = code.stack_before
        deepest = 0
        if step == most:
            raise _too_much(path, f"more than {most:,} instructions to build objects")
        if before:
            marked = pickletools.markobject in before
            start = (
                marks.pop() - before.index(pickletools.markobject)
                if marked
                else len(depths) - len(before)
            )
            taken = depths[start:]
            del depths[start:]
            own = taken.pop(0) if code.name in _IN_PLACE else 0
            deepest = max(own, 1 + max(taken, default=0))
            if deepest > _DEEPEST:
                raise _too_much(path, f"values that are nested more than {_DEEPEST} deep")
        elif code.name == "MARK":
            marks.append(len(depths))
            continue
        elif "GET" in code.name:
            deepest = memo.get(argument, 0)
        elif "PUT" in code.name:
            memo[argument] = depths[-1]
        depths += [deepest] * len(code.stack_after)


def open_zip(path: StrPath) -> zipfile.ZipFile:
    """Open a zip archive for reading, if its directory is not larger than that of any
    checkpoint."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 2**16 - 100))
        end = file.read()
    # An archive without a comment ends in the record of its directory.
    plain = end[-22:-18] == _DIRECTORY and end[-2:] == b"\0\0"
    place = len(end) - 22 if plain else end.rfind(_DIRECTORY)
    wide = place >= 76 and end[place - 76 : place - 72] == _DIRECTORY_64
    size = end[place - 36 : place - 28] if wide else end[place + 12 : place + 16]
    most = max(_LARGEST_DIRECTORY, os.path.getsize(path) // 8)
    if place >= 0 and int.from_bytes(size, "little") > most:
        raise _too_much(path, "a directory with more entries than its size allows")
    return zipfile.ZipFile(path)


def _too_much(path: StrPath, what: str) -> HypvisionError:
    return HypvisionError(
        f"The checkpoint '{path}' was refused: it has {what}, and no training saves as many. Get "
        "the file from a source that you trust, or save its weights alone: "
        "torch.save(model.state_dict(), path)."
    )


def _latin1(text: Any, encoding: Any) -> bytes:
    """Replace ``_codecs.encode``, which pickled bytes use. Other codecs than Latin-1, applied
    repeatedly, would make a large text of a small one."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnpicklingError(f"unsupported GLOBAL _codecs.encode of {str(encoding)[:40]!r}")
    return text.encode("latin1")


def _bytearray(*parts: Any) -> bytearray:
    """Replace ``bytearray``, which would make as many zeros as a number says."""
    if parts and isinstance(parts[0], int):
        raise UnpicklingError("unsupported GLOBAL builtins.bytearray of a number")
    return bytearray(*parts)


def bounded_functions() -> AbstractContextManager[Any]:
    """Return a context in which PyTorch's restricted reader calls the functions above in place of
    Python's."""
    known: Values = _weights_only_unpickler._get_allowed_globals()
    return patch.dict(known, {"_codecs.encode": _latin1, "builtins.bytearray": _bytearray})  # type: ignore[arg-type]
