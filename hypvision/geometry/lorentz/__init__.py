r"""The Lorentz model (hyperboloid) of hyperbolic space, as functions of tensors.

With curvature ``c > 0`` (sectional curvature ``-c``) the points are
:math:`\{x \in R^{n+1} : \langle x, x\rangle_L = -1/c,\ x_0 > 0\}`, where
:math:`\langle x, y\rangle_L = -x_0 y_0 + x_s \cdot y_s`. The time coordinate comes first. A point
is identified by its space part ``x_s``: functions read only the space part and compute the time
and, for tangent vectors, the time part anew. Gradients with respect to the time coordinate of an
argument are therefore 0, and those with respect to the space part are complete.

Every function takes tensors ``(..., n + 1)`` (points, tangent vectors) or ``(..., n)`` (space
parts, tangent vectors at the origin) and the curvature last: a float, or a tensor that broadcasts
with ``(..., 1)``.

float32 points are computed in float64 and results are rounded once: up to ``sqrt(c) * r = 16``
results are as exact as the rounding of the points allows, see ``docs/numerics.md``. Exponential
maps cut the distance that they move at 40 radii of curvature.

Sources: Nickel and Kiela (ICML 2018); Ganea et al. (NeurIPS 2018); Law et al. (ICML 2019); Nagano
et al. (ICML 2019); Desai et al. "MERU" (ICML 2023); Bdeir et al. (ICLR 2024, NeurIPS 2025).
"""

from .cones import (
    busemann,
    dist2plane,
    entailment_loss,
    exterior_angle,
    exterior_angles,
    half_aperture,
    horosphere_dist,
    hyperplane_logits,
)
from .curvatures import (
    change_curvature,
    concat,
    max_distance,
    rescale,
    rescale_tangent,
    scale_curvature,
    split,
)
from .distances import cdist, dist, sqdist
from .isometries import boost, geodesic, geodesic_unit, matvec, rotate, scalar_mul, unboost
from .means import centroid, frechet_mean, weighted_centroids
from .normal import wrapped_normal, wrapped_normal_log_prob
from .points import (
    dist0,
    expmap0,
    from_space,
    logmap0,
    minkowski_inner,
    origin,
    projx,
    time_from_space,
)
from .tangents import egrad2rgrad, expmap, inner, logmap, norm, proju, transp, transp0, transp0back

__all__ = [
    "boost", "busemann", "cdist", "centroid", "change_curvature", "concat", "dist", "dist0",
    "dist2plane", "egrad2rgrad", "entailment_loss", "expmap", "expmap0", "exterior_angle",
    "exterior_angles", "frechet_mean", "from_space", "geodesic", "geodesic_unit", "half_aperture",
    "horosphere_dist", "hyperplane_logits",
    "inner", "logmap", "logmap0", "matvec", "max_distance", "minkowski_inner",
    "norm", "origin", "proju", "projx", "rescale", "rescale_tangent", "rotate", "scalar_mul",
    "scale_curvature", "split", "sqdist", "time_from_space", "transp", "transp0", "transp0back",
    "unboost", "weighted_centroids", "wrapped_normal", "wrapped_normal_log_prob",
]  # fmt: skip
