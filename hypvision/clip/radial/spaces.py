"""Where embeddings live: distance from the root, similarity and exterior angle, on CLIP's sphere and on MERU's
hyperboloid.

>>> space = Sphere(root)
>>> space.radius(texts), space.similarity(images, texts)
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.checks import one_of
from hypvision.geometry import lorentz
from hypvision.losses import cone_half_aperture, radial_angle


class Space(Protocol):
    """The interface of an embedding space."""

    def radius(self, x: Tensor) -> Tensor:
        """How specific embeddings ``(..., d)`` are: ``(...)``, smallest at the root."""

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """Similarities ``(N, M)`` of ``(N, d)`` and ``(M, d)``."""

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle ``(...)`` at ``x`` between the ray from the root and the direction to ``y``, in radians; 0 if ``y`` is
        a specific case of ``x``."""

    def half_aperture(self, x: Tensor) -> Tensor:
        """Half-aperture ``(...)`` of the entailment cones at ``x``, in radians."""

    def towards_root(self, x: Tensor, steps: int) -> Tensor:
        """``steps`` points ``(steps, d)`` from ``x`` ``(d,)`` to the root, evenly spaced; both ends are among them."""


class Sphere:
    """Unit vectors around a root, as of CLIP.

    Args:
        root: ``(d,)``, a unit vector: the embedding of the empty text.
        measure: of radii: ``"distance"``, ``|e - r|``, as the metrics of HierarCaps take it; ``"cosine"``,
            ``1 - e . r``, as its traversal does. The order is the same; even steps are not.
        epsilon: of the cones, see :func:`hypvision.losses.cone_half_aperture`.
    """

    def __init__(self, root: Tensor, measure: str = "distance", epsilon: float = 0.1):
        one_of(("distance", "cosine"), measure=measure)
        self.root, self.measure, self.epsilon = root, measure, epsilon

    def radius(self, x: Tensor) -> Tensor:
        if self.measure == "cosine":
            return 1 - x @ self.root
        return torch.linalg.vector_norm(x - self.root, dim=-1)

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.T

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        return radial_angle(x, y, self.root.expand_as(x))

    def half_aperture(self, x: Tensor) -> Tensor:
        return cone_half_aperture(x, self.root, self.epsilon)

    def towards_root(self, x: Tensor, steps: int) -> Tensor:
        share = torch.linspace(0, 1, steps, dtype=x.dtype, device=x.device)[:, None]
        return F.normalize(torch.lerp(x, self.root, share), dim=-1)


class Hyperboloid:
    """Points of a hyperboloid ``(..., d + 1)``, time first, as of MERU; the root is the origin.

    Args:
        c: curvature.
        min_radius: of :func:`hypvision.geometry.lorentz.half_aperture`.
    """

    def __init__(self, c: float = 1.0, min_radius: float = 0.1):
        self.c, self.min_radius = c, min_radius

    def radius(self, x: Tensor) -> Tensor:
        return lorentz.dist0(x, self.c)

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 1:] @ y[..., 1:].T - x[..., :1] @ y[..., :1].T  # the Lorentzian inner product

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        return lorentz.exterior_angle(x, y, self.c)

    def half_aperture(self, x: Tensor) -> Tensor:
        return lorentz.half_aperture(x, self.c, self.min_radius)

    def towards_root(self, x: Tensor, steps: int) -> Tensor:
        share = torch.linspace(1, 0, steps, dtype=x.dtype, device=x.device)[:, None]
        return lorentz.expmap0(share * lorentz.logmap0(x, self.c), self.c)
