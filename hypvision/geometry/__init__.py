"""Hyperbolic geometry: pure functions of tensors, and manifold objects that know their curvature.
Needs torch alone."""

from . import lorentz, maps, numerics, poincare
from .euclidean import Euclidean
from .manifold import CurvatureParameter, Manifold
from .manifolds import Lorentz, PoincareBall
from .parameters import ManifoldParameter, named_manifold_parameters
from .product import Product

__all__ = [
    "CurvatureParameter", "Euclidean", "Lorentz", "Manifold", "ManifoldParameter", "PoincareBall",
    "Product", "lorentz", "maps", "named_manifold_parameters", "numerics", "poincare",
]  # fmt: skip
