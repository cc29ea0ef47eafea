"""Spaces of the embeddings of CLIP models: CLIP's sphere, the hyperboloid of MERU, HyCoCLIP and
UNCHA, the same compared by angles for ATMG, and PHyCLIP's product of hyperboloids.

>>> space = space_of(model)
>>> images = space.embed(encode_image(model, pixels), "image")
>>> space.scores(images, space.embed(encode_text(model, tokens), "text"))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz, Manifold, Product
from hypvision.geometry.border import check_shapes
from hypvision.geometry.numerics import exact, has_float64, sinhc
from hypvision.io import HypvisionError, one_of
from hypvision.losses import cone_half_aperture, radial_angle

Modality = Literal["image", "text"]
Scales = Mapping[Modality, Tensor]


class Space(Protocol):
    """The interface of an embedding space; ``d`` is the length of a point."""

    factors: int = 1
    """Number of the factors of a product; a table of distances takes so many times the memory."""
    sided: bool = False
    """Whether logits of texts among images are others than those of images among texts."""

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        """Return points ``(..., d)`` for a tower's projected features ``(..., E)``, at least in
        float32, under autocast too."""

    def to_average(self, features: Tensor) -> Tensor:
        """Return the vectors ``(..., E)`` whose mean over several texts stands for all of them."""

    def mean(self, features: Tensor, modality: Modality) -> Tensor:
        """Return points ``(N, d)`` of N classes from their features in P texts, ``(N, P, E)``, or
        all points ``(N, P, d)``, if classes are the means over scores."""
        return self.embed(self.to_average(_wide(features)).mean(-2), modality)

    def as_vectors(self, points: Tensor) -> Tensor:
        """Return points as vectors for Euclidean methods, such as a linear probe; on a hyperboloid
        these are tangent vectors at the origin."""

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Return logits ``(N, M)`` of the contrastive loss for points of images ``(N, d)`` and of
        texts ``(M, d)``; on a hyperboloid in float64, if the device has it."""

    def text_logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Return the logits ``(N, M)`` for texts ``(N, d)`` among images ``(M, d)``."""
        return self.logits(x, y, scale)

    def class_logits(self, images: Tensor, classes: Tensor, scale: Tensor) -> Tensor:
        """Return the logits ``(N, C)`` of images ``(N, d)`` for the points of C classes at test
        time, which have the order of :meth:`scores`."""
        return self.logits(images, classes, scale)

    def radius(self, x: Tensor) -> Tensor:
        """Return the distances ``(...)`` of embeddings ``(..., d)`` from the root: specific
        embeddings lie far from it."""

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        """Return similarities ``(N, M)`` of points ``(N, d)`` and ``(M, d)``: how near they are."""

    def scores(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the scores ``(N, C)`` at test time of images ``(N, d)`` for texts ``(C, d)`` or
        the points of classes; the largest wins."""
        return self.similarity(images, classes)

    def ranking(self, x: Tensor, y: Tensor, query: Modality) -> Tensor:
        """Return the scores ``(N, M)`` by which images or texts ``x`` ``(N, d)``, as ``query``
        says, find the others ``y`` ``(M, d)``."""
        return self.similarity(x, y)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the angle ``(...)`` at ``x`` between the ray from the root through ``x`` and the
        direction to ``y``, in radians; it is 0 if ``y`` lies on that ray behind ``x``."""

    def half_aperture(self, x: Tensor) -> Tensor:
        """Return the half-aperture ``(...)`` of the entailment cones at ``x``, in radians."""

    def entails(self, x: Tensor, y: Tensor) -> Tensor:
        """Return whether ``y`` lies in the entailment cone of ``x``, ``(...)``."""
        return self.exterior_angle(x, y) <= self.half_aperture(x)

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        """Return ``steps`` points ``(steps, d)`` from ``x`` ``(d,)`` to ``end``, or to the root,
        both included. They are evenly spaced on a line in the tangent space at the origin; on a
        sphere on a chord, and then normalised."""


class Sphere(Space):
    """Unit vectors around a root, which are the embeddings of CLIP.

    Args:
        root: ``(d,)``, a unit vector: the embedding of the empty text. Radii, cones and walks need
            a root.
        measure: formula of radii: ``"distance"``, ``|e - r|``, as in HierarCaps' metrics;
            ``"cosine"``, ``1 - e . r``, as in its traversal. Both give the same order of texts, but
            evenly spaced radii differ.
    """

    def __init__(self, root: Tensor | None = None, measure: str = "distance"):
        one_of(("distance", "cosine"), measure=measure)
        self._root = root
        self.measure = measure

    def __repr__(self) -> str:
        return f"Sphere({'with' if self.has_root else 'without'} a root)"

    @property
    def has_root(self) -> bool:
        """Whether the root is known."""
        return self._root is not None

    @property
    def root(self) -> Tensor:
        """The root of the hierarchy, ``(d,)``; an error if it is unknown."""
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
            with exact(x.device):
                x, root = _of_one_dtype(x, self.root)
                return 1 - x @ root
        return torch.linalg.vector_norm(x - self.root, dim=-1)

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        _check_tables(x, y)
        # bfloat16 would round a logit of 50 to a multiple of 0.25.
        with exact(x.device):
            x, y = _of_one_dtype(x, y)
            return x @ y.T

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        check_shapes("exterior_angle", dict(x=x, y=y), 0)
        return radial_angle(x, y, self.root.expand_as(x))

    def half_aperture(self, x: Tensor) -> Tensor:
        return cone_half_aperture(x, self.root, 0.1)

    def way(self, x: Tensor, steps: int, end: Tensor | None = None) -> Tensor:
        share = torch.linspace(0, 1, steps, dtype=x.dtype, device=x.device)[:, None]
        return F.normalize(torch.lerp(x, self.root if end is None else end, share), dim=-1)


class _Given(Lorentz):
    """A hyperboloid whose curvature is given, because a model learns it under its own name."""

    def __init__(self, c: float | Tensor):
        super().__init__()
        self.given = c

    @property
    def c(self) -> float | Tensor:
        """The curvature, through which gradients flow."""
        return self.given


class Lifted(Space):
    """A manifold whose points are features times the ``scales`` of their modality, lifted at the
    origin, which is the root; ``min_radius`` is that of
    :func:`hypvision.geometry.lorentz.half_aperture`."""

    FARTHEST = math.asinh(2**15)
    """Distance from the origin, times ``sqrt(c)``, to which the lift shortens longer features:
    11.09."""

    manifold: Any
    """The space of the points: a :class:`~hypvision.geometry.Lorentz`, or a
    :class:`~hypvision.geometry.Product` of several."""

    def __init__(self, manifold: Manifold, min_radius: float, scales: Scales | None):
        self.manifold = manifold
        self.min_radius = min_radius
        self.scales = scales or {}

    def _lift(self, v: Tensor, manifold: Any) -> Tensor:
        """Return points of one hyperboloid for tangent vectors ``v`` at its origin."""
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True) * manifold.c**0.5
        # The length is clamped, not the vector: sinh would enlarge the rounding error that a
        # clamped vector's gradient has along the ray.
        stretch = sinhc(length.clamp(max=self.FARTHEST)) * (
            self.FARTHEST / length.clamp(min=self.FARTHEST)
        )
        return manifold.from_space(stretch * v)

    def to_average(self, features: Tensor) -> Tensor:
        # As in the official code, features are averaged before the lift and not normalised.
        return features

    def as_vectors(self, points: Tensor) -> Tensor:
        return self.manifold.logmap0(points)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Return distances ``(N, M)`` of points ``(N, d)`` and ``(M, d)``."""
        raise NotImplementedError

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        # float32 rounds distances so much at the longest length of the lift that gradients have an
        # error of 1e-5.
        return -scale * self.distances(_exact(x), _exact(y))

    def similarity(self, x: Tensor, y: Tensor) -> Tensor:
        # The Lorentzian inner product is one matrix product. In bfloat16 the order of points far
        # from the origin would change.
        _check_tables(x, y)
        with exact(x.device):
            x, y = _of_one_dtype(x, y)
            return self._reflected(x) @ y.T

    def _reflected(self, x: Tensor) -> Tensor:
        """Return points with the opposite sign of the time coordinate."""
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
    """A hyperboloid of curvature ``c`` with points ``(..., E + 1)``, time first, as in MERU (Desai
    et al., ICML 2023). The order by similarity is that of the negative distances."""

    def __init__(
        self, c: float | Tensor = 1.0, min_radius: float = 0.1, scales: Scales | None = None
    ):
        super().__init__(_Given(c), min_radius, scales)

    def __repr__(self) -> str:
        return f"Hyperboloid(c={torch.as_tensor(self.c).item():.4g})"

    @property
    def c(self) -> float | Tensor:
        """The curvature of the hyperboloid."""
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


class ExteriorAngles(Hyperboloid):
    """A hyperboloid whose images and texts are compared by exterior angles, as in ATMG
    (Ramasinghe et al., "Accept the Modality Gap", CVPR 2024): images come to lie behind their text,
    so that the angle at an image towards its text is large, and the angle at a text towards its
    image small. The points of a class are those of all its texts, whose angles are averaged.
    ``similarity`` is still the nearness, which walks need."""

    sided = True

    def mean(self, features: Tensor, modality: Modality) -> Tensor:
        return self.embed(features, modality)

    def _angles(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold.exterior_angles(_exact(x), _exact(y))

    def logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return scale * self.scores(x, y)

    def text_logits(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return -scale * self._angles(x, y)

    def scores(self, images: Tensor, classes: Tensor) -> Tensor:
        if classes.dim() == 2:
            return self._angles(images, classes)
        texts = classes.flatten(0, 1)
        parts = [self._angles(part, texts) for part in images.split(512)]
        return torch.cat(parts).unflatten(1, classes.shape[:2]).mean(-1)

    def ranking(self, x: Tensor, y: Tensor, query: Modality) -> Tensor:
        # Not the logits of the loss: the angle at what is found, as in the official code.
        angles = self._angles(y, x).T
        return angles if query == "text" else -angles


class HyperboloidProduct(Lifted):
    """A product of k hyperboloids with points ``(..., k * (n + 1))``: factor after factor, each
    with its time first, as in PHyCLIP (Yoshikawa and Matsubara, ICLR 2026).

    Features ``(..., k * n)`` are cut into k parts. A distance is the mean of the distances in the
    factors, as in the official code (the paper sums them). A similarity is the sum of the factors'
    Lorentzian inner products, from which the published numbers come; the order by similarity is not
    that by distance, for which there is :meth:`distances`. Radii, angles and apertures are means
    over the factors, and a cone contains what the cones of all factors contain.

    Args:
        c: curvatures ``(k,)``.
        dim: the dimension n of a factor.
        min_radius, scales: see :class:`Lifted`; a scale ``(k,)`` has one number for each factor.
        metric: ``"l1"``; or ``"l2"``, an ablation: a distance is the root of the mean of squares.
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
        self.factors = len(c)
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
            # All factors are lifted in one pass.
            return self._lift(parts * scale[..., None], _Given(self.c[:, None])).flatten(-2)

    def _mean(self, method: str, **points: Tensor) -> Tensor:
        """Return the mean over the factors of what ``method`` returns for each."""
        return self.manifold.by_factor(method, **points).mean(-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        if self.metric == "l1":
            return self._mean("cdist", x=x, y=y)
        return self.manifold.cdist(x, y) / len(self.c) ** 0.5

    def class_logits(self, images: Tensor, classes: Tensor, scale: Tensor) -> Tensor:
        return scale * self.similarity(images, classes) / self.factors

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
    """Return the space of a CLIP model's embeddings; gradients flow through its curvature."""
    found: Any = getattr(model, "space", None)
    return Sphere() if found is None else cast(Space, found)


def _of_one_dtype(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the wider one of their dtypes: autocast rounds the embeddings of images, and
    leaves those of words that were embedded before."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)


def _check_tables(x: Tensor, y: Tensor) -> None:
    """Raise an error if tensors are not points ``(N, d)`` and ``(M, d)``."""
    if y.dim() != 2 or x.dim() == 0 or x.shape[-1] != y.shape[1]:
        raise ValueError(
            f"The points have the shapes {tuple(x.shape)} and {tuple(y.shape)}. Expected: (N, d) "
            "and (M, d), N and M points of one space."
        )


def _exact(x: Tensor) -> Tensor:
    """Return ``x`` in float64, if the device has it."""
    return x.double() if has_float64(x) else x


def _wide(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or as it is if its type is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
