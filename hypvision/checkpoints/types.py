"""Type aliases for state dicts, which many signatures use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

StateDict: TypeAlias = dict[str, Tensor]
Weights: TypeAlias = Mapping[str, Tensor]
"""A state dict that a function only reads."""
