"""Where the embeddings of a CLIP model live: on CLIP's sphere, or on the hyperboloid of MERU and
HyCoCLIP.

>>> space = space_of(model)
>>> images = space.embed(encode_image(model, pixels), "image")
>>> space.similarity(images, space.embed(encode_text(model, tokens), "text"))
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import lorentz
from hypvision.geometry.numerics import exact, has_float64, sinhc
from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError
from hypvision.losses import cone_half_aperture, radial_angle

Modality = Literal["image", "text"]


class Space(Protocol):
    """The interface of an embedding space; ``d`` is the length of a point."""

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        """Points ``(..., d)`` for the outputs ``(..., E)`` of a tower's projection; float32 at
        least, under autocast too."""

    def to_average(self, features: Tensor) -> Tensor:
        """The vectors ``(..., E)`` whose mean stands for several texts."""

    def mean(self, features: Tensor, modality: Modality) -> Tensor:
        """Points ``(N, d)`` of classes with P texts each, ``(N, P, E)``."""
        return self.embed(self.to_average(_wide(features)).mean(-2), modality)

    def as_vectors(self, points: Tensor) -> Tensor:
        """Vectors for Euclidean methods, such as a linear probe: in the origin's tangent space."""

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Logits ``(N, M)`` of the contrastive loss, of points ``(N, d)`` and ``(M, d)``; on a
        hyperboloid in float64, if the device has it."""

    def radius(self, x: Tensor) -> Tensor:
        """How specific embeddings ``(..., d)`` are: ``(...)``, smallest at the root."""

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """Similarities ``(N, M)`` of ``(N, d)`` and ``(M, d)``."""

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle ``(...)`` at ``x`` between the ray from the root and the direction to ``y``, in
        radians; 0 if ``y`` is a specific case of ``x``."""

    def half_aperture(self, x: Tensor) -> Tensor:
        """Half-aperture ``(...)`` of the entailment cones at ``x``, in radians."""

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        """``steps`` points ``(steps, d)`` from ``x`` ``(d,)`` to ``end``, or to the root, evenly
        spaced on a straight line (in the tangent space at the origin; a chord, then made unit
        length); both ends are among them."""


class Sphere(Space):
    """Unit vectors around a root, as of CLIP.

    Args:
        root: ``(d,)``, a unit vector: the embedding of the empty text. Radii, cones and walks need
            a root.
        measure: of radii: ``"distance"``, ``|e - r|``, as the metrics of HierarCaps take it;
            ``"cosine"``, ``1 - e . r``, as its traversal does. Both measures give the same order of
            texts, but evenly spaced radii are not the same.
        epsilon: of the cones, see :func:`hypvision.losses.cone_half_aperture`.
    """

    def __init__(self, root: Tensor | None = None, measure: str = "distance", epsilon: float = 0.1):
        one_of(("distance", "cosine"), measure=measure)
        self._root = root
        self.measure = measure
        self.epsilon = epsilon

    def __repr__(self) -> str:
        return f"Sphere({'with' if self.has_root else 'without'} a root)"

    @property
    def has_root(self) -> bool:
        """Whether the root is known."""
        return self._root is not None

    @property
    def root(self) -> Tensor:
        """The root of the hierarchy."""
        if self._root is None:
            raise HypvisionError(
                "This sphere has no root. Give Sphere(root) the embedding of the empty text."
            )
        return self._root

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        return F.normalize(_wide(features), dim=-1)

    def to_average(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1)

    def as_vectors(self, points: Tensor) -> Tensor:
        return points

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return scale * self.similarity(x, y)

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

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        share = torch.linspace(0, 1, steps, dtype=x.dtype, device=x.device)[:, None]
        return F.normalize(torch.lerp(x, self.root if end is None else end, share), dim=-1)


class Hyperboloid(Space):
    """Points of a hyperboloid ``(..., E + 1)`` of curvature ``c``, time first, as of MERU (Desai et
    al., ICML 2023), with the origin as root; ``scales`` are factors of the features of each
    modality before the lift, ``min_radius`` is that of
    :func:`hypvision.geometry.lorentz.half_aperture`."""

    FARTHEST = math.asinh(2**15)
    """Distance from the origin, times ``sqrt(c)``, beyond which the lift brings features back to
    it: 11.09."""

    def __init__(
        self,
        c: float | Tensor = 1.0,
        min_radius: float = 0.1,
        scales: dict[Modality, Tensor] | None = None,
    ):
        self.c = c
        self.min_radius = min_radius
        self.scales = scales or {}

    def __repr__(self) -> str:
        return f"Hyperboloid(c={torch.as_tensor(self.c).item():.4g})"

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        with exact(features.device):
            v = _wide(features) * self.scales.get(modality, 1.0)
            length = torch.linalg.vector_norm(v, dim=-1, keepdim=True) * self.c**0.5
            # The length is clamped, not the vector: sinh would enlarge the rounding error that a
            # clamped vector's gradient has along the ray.
            stretch = sinhc(length.clamp(max=self.FARTHEST)) * (
                self.FARTHEST / length.clamp(min=self.FARTHEST)
            )
            return lorentz.from_space(stretch * v, self.c)

    def to_average(self, features: Tensor) -> Tensor:
        # features are averaged before the lift and not normalised, as in the official code
        return features

    def as_vectors(self, points: Tensor) -> Tensor:
        return lorentz.logmap0(points, self.c)

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        # In float64: float32 rounds distances where the lift is cut so that gradients have an error
        # of 1e-5.
        return -scale * lorentz.cdist(x, y, self.c, torch.float64 if has_float64(x) else None)

    def radius(self, x: Tensor) -> Tensor:
        return lorentz.dist0(x, self.c)

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        # The Lorentzian inner product, by one matrix product; it gives the same order as the
        # negative distance. bfloat16 would change the order of points far from the origin.
        with exact(x.device):
            return torch.cat([-x[..., :1], x[..., 1:]], -1) @ y.T

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        return lorentz.exterior_angle(x, y, self.c)

    def half_aperture(self, x: Tensor) -> Tensor:
        return lorentz.half_aperture(x, self.c, self.min_radius)

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        share = torch.linspace(0, 1, steps, dtype=x.dtype, device=x.device)[:, None]
        first = lorentz.logmap0(x, self.c)
        last = torch.zeros_like(first) if end is None else lorentz.logmap0(end, self.c)
        return lorentz.expmap0(torch.lerp(first, last, share), self.c)


def space_of(model: nn.Module) -> Space:
    """The space of a CLIP model's embeddings, with its curvature, through which gradients flow."""
    found: Any = getattr(model, "space", None)
    return Sphere() if found is None else cast(Space, found)


def _wide(x: Tensor) -> Tensor:
    """float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
