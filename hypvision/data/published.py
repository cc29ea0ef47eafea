"""Read the lists that authors publish with data sets: lines of words, and Matlab files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hypvision.io import HypvisionError, require
from hypvision.io.files import check_regular, read_lines

from .classes import whole_label


def read_rows(
    path: Path, what: str, least: int, most: int | None = None, skip: int = 0
) -> list[list[str]]:
    """Return the words of each line of a text file, without its first ``skip`` lines and without
    comments (``#``); a line must have from ``least`` to ``most`` words."""
    rows = [line.split() for line in read_lines(path, what)[skip:] if not line.startswith("#")]
    for row in rows:
        if len(row) < least or (most is not None and len(row) > most):
            number = least if most == least else f"at least {least}"
            raise HypvisionError(
                f"'{path}', {what}, has the line '{' '.join(row)}', but expected are {number} "
                "words. Replace the file by an intact copy."
            )
    return rows


def read_label(value: Any, path: Path, most: int | None = None) -> int:
    """Return a label from a file of Matlab or text as an integer; labels count from 1 (to ``most``,
    if given)."""
    label = whole_label(value.item() if isinstance(value, np.generic) else value)
    if label is None or label < 1 or (most is not None and label > most):
        wanted = f"from 1 to {most}" if most else "from 1"
        raise HypvisionError(
            f"'{path}' has the label {value!r}; expected whole numbers {wanted}. Use an intact "
            "copy."
        )
    return label


def read_matlab(path: Path, key: str, **options: Any) -> Any:
    """Return the value of ``key`` in a Matlab file; ``options`` are those of SciPy's
    ``loadmat``."""
    loadmat = require("scipy.io", "metric").loadmat
    try:
        content = loadmat(check_regular(path), **options)
    except FileNotFoundError:
        raise HypvisionError(
            f"There is no '{path}', a file that the data set's authors publish. Put it there."
        ) from None
    except Exception as error:  # SciPy raises errors of many classes for damaged files
        raise HypvisionError(
            f"'{path}' cannot be read ({error}). Replace it by an intact copy."
        ) from error
    if key not in content:
        found = (
            ", ".join(sorted(name for name in content if not name.startswith("__"))) or "nothing"
        )
        raise HypvisionError(
            f"'{path}' has no '{key}', it has {found}. Replace it by an intact copy."
        )
    return content[key]
