"""Names of types that many signatures have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

StateDict: TypeAlias = dict[str, Tensor]
Weights: TypeAlias = Mapping[str, Tensor]
"""A state dict, to be read only."""
