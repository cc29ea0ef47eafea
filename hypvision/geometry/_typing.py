"""The type of arguments that may be a number or a tensor."""

from torch import Tensor

Curvature = float | Tensor
