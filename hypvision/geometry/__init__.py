"""Hyperbolic geometry: pure functions of tensors, and manifold objects that know their curvature. Needs torch alone."""

from . import lorentz, maps, numerics, poincare
from .manifolds import (
    CurvatureParameter,
    Euclidean,
    Lorentz,
    Manifold,
    ManifoldParameter,
    PoincareBall,
    Product,
    named_manifold_parameters,
)

__all__ = [
    "CurvatureParameter",
    "Euclidean",
    "Lorentz",
    "Manifold",
    "ManifoldParameter",
    "PoincareBall",
    "Product",
    "lorentz",
    "maps",
    "named_manifold_parameters",
    "numerics",
    "poincare",
]
