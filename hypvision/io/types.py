"""Type aliases for paths and dicts, which many signatures use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

StrPath: TypeAlias = str | Path
Plain: TypeAlias = dict[str, Any]
"""Values by name: a sample, settings, a row, keyword arguments."""
Values: TypeAlias = Mapping[str, Any]
"""Values by name that a function only reads."""
Names: TypeAlias = tuple[str, ...]
"""Names of classes, in the order of their labels."""
NameList: TypeAlias = StrPath | Sequence[str]
"""Names of classes, or the file or the shipped list that has them."""
Ancestors: TypeAlias = Mapping[str, Sequence[str]]
"""The groups above each class, from general to specific."""
Metrics: TypeAlias = dict[str, float]
"""The values of metrics by name."""
