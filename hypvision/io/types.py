"""Names of types that many signatures have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

StrPath: TypeAlias = str | Path
Plain: TypeAlias = dict[str, Any]
"""Values by name: a sample, settings, a row, keyword arguments."""
Values: TypeAlias = Mapping[str, Any]
"""The same, to be read only."""
