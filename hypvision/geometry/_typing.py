"""The types of arguments that may be a number or a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    Curvature = Number = float | Tensor
else:
    # TorchScript reads annotations at run time and cannot do arithmetic on a union; eager code takes a float as well.
    Curvature = Tensor
    # ... and where its users pass a number
    Number = float
