"""Hyperbolic geometry as pure functions of tensors. Needs torch alone."""

from . import lorentz, numerics

__all__ = ["lorentz", "numerics"]
