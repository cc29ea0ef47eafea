"""Where the embeddings of a CLIP model live: on CLIP's sphere, on the hyperboloid of MERU, HyCoCLIP
and UNCHA, or on PHyCLIP's product of hyperboloids.

>>> space = space_of(model)
>>> images = space.embed(encode_image(model, pixels), "image")
>>> space.similarity(images, space.embed(encode_text(model, tokens), "text"))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz, Manifold, Product
from hypvision.geometry.numerics import exact, has_float64, sinhc
from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError
from hypvision.losses import cone_half_aperture, radial_angle

Modality = Literal["image", "text"]
Scales = Mapping[Modality, Tensor]


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

    def entails(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether ``y`` is in the entailment cone of ``x``, ``(...)``."""
        return self.exterior_angle(x, y) <= self.half_aperture(x)

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


class _Given(Lorentz):
    """The hyperboloid of a curvature that a model learns under a name of its own."""

    def __init__(self, c: float | Tensor):
        super().__init__()
        self.given = c

    @property
    def c(self) -> float | Tensor:
        """The curvature, through which gradients flow."""
        return self.given


class Lifted(Space):
    """Features times the ``scales`` of their modality, lifted at the origin of a manifold, which is
    the root; ``min_radius`` is that of :func:`hypvision.geometry.lorentz.half_aperture`."""

    FARTHEST = math.asinh(2**15)
    """Distance from the origin, times ``sqrt(c)``, beyond which the lift brings features back to
    it: 11.09."""

    manifold: Any
    """The space of the points: a :class:`~hypvision.geometry.Lorentz`, or a
    :class:`~hypvision.geometry.Product` of several."""

    def __init__(self, manifold: Manifold, min_radius: float, scales: Scales | None):
        self.manifold = manifold
        self.min_radius = min_radius
        self.scales = scales or {}

    def _lift(self, v: Tensor, manifold: Any) -> Tensor:
        """Points of one hyperboloid for tangent vectors at its origin."""
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True) * manifold.c**0.5
        # The length is clamped, not the vector: sinh would enlarge the rounding error that a
        # clamped vector's gradient has along the ray.
        stretch = sinhc(length.clamp(max=self.FARTHEST)) * (
            self.FARTHEST / length.clamp(min=self.FARTHEST)
        )
        return manifold.from_space(stretch * v)

    def to_average(self, features: Tensor) -> Tensor:
        # features are averaged before the lift and not normalised, as in the official code
        return features

    def as_vectors(self, points: Tensor) -> Tensor:
        return self.manifold.logmap0(points)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances ``(N, M)`` of ``(N, d)`` and ``(M, d)``."""
        raise NotImplementedError

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        # In float64: float32 rounds distances where the lift is cut so that gradients have an error
        # of 1e-5.
        if has_float64(x):
            x = x.double()
            y = y.double()
        return -scale * self.distances(x, y)

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        # The Lorentzian inner product, by one matrix product. bfloat16 would change the order of
        # points far from the origin.
        with exact(x.device):
            return self._reflected(x) @ y.T

    def _reflected(self, x: Tensor) -> Tensor:
        """Points with the opposite time."""
        raise NotImplementedError

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold.exterior_angle(x, y)

    def half_aperture(self, x: Tensor) -> Tensor:
        return self.manifold.half_aperture(x, self.min_radius)

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        share = torch.linspace(0, 1, steps, dtype=x.dtype, device=x.device)[:, None]
        first = self.manifold.logmap0(x)
        last = torch.zeros_like(first) if end is None else self.manifold.logmap0(end)
        return self.manifold.expmap0(torch.lerp(first, last, share))


class Hyperboloid(Lifted):
    """Points of a hyperboloid ``(..., E + 1)`` of curvature ``c``, time first, as of MERU (Desai et
    al., ICML 2023). The order by similarity is that of the negative distances."""

    def __init__(
        self, c: float | Tensor = 1.0, min_radius: float = 0.1, scales: Scales | None = None
    ):
        super().__init__(_Given(c), min_radius, scales)

    def __repr__(self) -> str:
        return f"Hyperboloid(c={torch.as_tensor(self.c).item():.4g})"

    @property
    def c(self) -> float | Tensor:
        """The curvature."""
        return self.manifold.c

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        with exact(features.device):
            v = _wide(features) * self.scales.get(modality, 1.0)
            return self._lift(v, self.manifold)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold.cdist(x, y)

    def radius(self, x: Tensor) -> Tensor:
        return self.manifold.dist0(x)

    def _reflected(self, x: Tensor) -> Tensor:
        return torch.cat([-x[..., :1], x[..., 1:]], -1)


class HyperboloidProduct(Lifted):
    """Points of a product of k hyperboloids ``(..., k * (n + 1))``, factor after factor, each with
    its time first, as of PHyCLIP (Yoshikawa and Matsubara, ICLR 2026).

    Features ``(..., k * n)`` are cut into k parts. A distance is the mean of those in the factors,
    as in the official code (the paper has their sum). Similarities are sums of the factors'
    Lorentzian inner products, which published numbers come from; their order is not that of the
    distances: for that take :meth:`distances`. Radii, angles and apertures are means of the
    factors', and a cone holds what the cones of all factors hold.

    Args:
        c: curvatures ``(k,)``.
        dim: the dimension n of a factor.
        min_radius, scales: see :class:`Lifted`; a scale ``(k,)`` has one number for each factor.
        metric: ``"l1"``, or ``"l2"``: a distance is the root of the mean of squares (ablation).
    """

    def __init__(
        self,
        c: Tensor,
        dim: int,
        min_radius: float = 0.1,
        scales: Scales | None = None,
        metric: str = "l1",
    ):
        one_of(("l1", "l2"), metric=metric)
        factors = [(_Given(one), dim) for one in c.unbind()]
        super().__init__(Product(*factors), min_radius, scales)
        self.c = c
        self.dim = dim
        self.metric = metric

    def __repr__(self) -> str:
        low, high = self.c.aminmax()
        count = len(self.c)
        return f"HyperboloidProduct({count} of dimension {self.dim}, c={low:.4g} to {high:.4g})"

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        with exact(features.device):
            parts = _wide(features).unflatten(-1, (len(self.c), self.dim))
            scale = torch.as_tensor(self.scales.get(modality, 1.0), device=features.device)
            # all factors in one pass
            return self._lift(parts * scale[..., None], _Given(self.c[:, None])).flatten(-2)

    def _mean(self, method: str, **points: Tensor) -> Tensor:
        """The mean of the factors' numbers."""
        return self.manifold.by_factor(method, **points).mean(-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        if self.metric == "l1":
            return self._mean("cdist", x=x, y=y)
        return self.manifold.cdist(x, y) / len(self.c) ** 0.5

    def radius(self, x: Tensor) -> Tensor:
        return self._mean("dist0", x=x)

    def _reflected(self, x: Tensor) -> Tensor:
        factors = x.unflatten(-1, (len(self.c), 1 + self.dim))
        return torch.cat([-factors[..., :1], factors[..., 1:]], -1).flatten(-2)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        return super().exterior_angle(x, y).mean(-1)

    def half_aperture(self, x: Tensor) -> Tensor:
        return super().half_aperture(x).mean(-1)

    def entails(self, x: Tensor, y: Tensor) -> Tensor:
        angles = self.manifold.exterior_angle(x, y)
        return (angles <= self.manifold.half_aperture(x, self.min_radius)).all(-1)


def space_of(model: nn.Module) -> Space:
    """The space of a CLIP model's embeddings, with its curvature, through which gradients flow."""
    found: Any = getattr(model, "space", None)
    return Sphere() if found is None else cast(Space, found)


def _wide(x: Tensor) -> Tensor:
    """float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
