"""Lists of data sets as their authors publish them: lines of words, and files of Matlab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hypvision.data.classes import whole_label
from hypvision.io.errors import HypvisionError, require
from hypvision.io.files import check_regular, read_lines


def read_rows(
    path: Path, what: str, least: int, most: int | None = None, skip: int = 0
) -> list[list[str]]:
    """The words of each line but the first ``skip``, and comments (``#``); from ``least`` to
    ``most`` of them."""
    rows = [line.split() for line in read_lines(path, what)[skip:] if not line.startswith("#")]
    for row in rows:
        if len(row) < least or (most is not None and len(row) > most):
            number = least if most == least else f"at least {least}"
            raise HypvisionError(
                f"'{path}', {what}, has the line '{' '.join(row)}', but expected are {number} "
                "words. Replace it."
            )
    return rows


def read_label(value: Any, path: Path, most: int | None = None) -> int:
    """A label in a file, which counts from 1, as a number."""
    label = whole_label(value.item() if isinstance(value, np.generic) else value)
    if label is None or label < 1 or (most is not None and label > most):
        wanted = f"from 1 to {most}" if most else "from 1"
        raise HypvisionError(
            f"'{path}' has the label {value!r}; expected whole numbers {wanted}. Take an intact "
            "copy."
        )
    return label


def read_matlab(path: Path, key: str, **options: Any) -> Any:
    """The value of a key in a file of Matlab; options of SciPy's reader."""
    loadmat = require("scipy.io", "metric").loadmat
    try:
        content = loadmat(check_regular(path), **options)
    except FileNotFoundError:
        raise HypvisionError(f"There is no '{path}', a file of the data set's authors.") from None
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
