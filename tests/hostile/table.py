"""The cases of an attack."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHARED = "HYPVISION_ATTACK_FOLDER"  # a folder that the cases of one call share


class Skipped(Exception):
    """A case cannot be tried on this machine; the text says why."""


@dataclass(frozen=True)
class Case:
    """One attack: ``run`` gets an empty folder, and returns what happened, in a short sentence; it raises
    AssertionError if a promise is broken. Limits of its process: ``seconds`` and ``megabytes`` of resident memory."""

    group: str
    name: str
    run: Callable[[Path], str]
    seconds: float = 30
    megabytes: int = 1500


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name that all cases of a call read: the first that asks for it makes it."""
    root = Path(os.environ.setdefault(SHARED, tempfile.mkdtemp(prefix="attack-")))
    folder = root / name
    if not (root / f"{name}.made").exists():
        folder.mkdir()
        make(folder)
        (root / f"{name}.made").touch()
    return folder
