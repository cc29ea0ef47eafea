r"""Losses that order texts from general to specific: radial embeddings, and entailment cones as
alternatives.

Alper and Averbuch-Elor, "Emergent Visual-Semantic Hierarchies in Image-Text Representations" (ECCV
2024). An embedding ``e`` is more general than ``e'`` if the direction from ``e`` to ``e'``
continues that from the root ``r`` to ``e``: if the *exterior angle*
:math:`\Xi_r(e, e') = \angle(e - r,\, e' - e)` is small. The alternatives require ``e'`` to lie in a
cone at ``e``: in flat space (Ganea et al., ICML 2018) or on the hyperboloid (MERU, Desai et al.,
ICML 2023).

All losses here are modules of one form. Texts are rows of a matrix, each distinct text once, and
*triples* of row numbers give the supervision: (general, specific, negative). Chains of any length
and trees are sets of triples; :func:`chain_triples` makes those of chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hypvision.geometry import lorentz
from hypvision.geometry.numerics import exact, safe_sqrt, square_norm
from hypvision.io.checks import at_least, one_of
from hypvision.io.errors import ArgumentError

# Shorter vectors have no direction, because unit vectors of equal texts differ by round-off.
_SHORTEST = {torch.float64: 1e-12, torch.float32: 1e-6}


def radial_angle(general: Tensor, specific: Tensor, root: Tensor) -> Tensor:
    r"""Exterior angle :math:`\Xi_r(e, e')` ``(...)`` at ``e`` between the rays from the root and to
    ``e'``, in radians.

    Kahan's form :math:`2\,\mathrm{atan2}(|a - g|, |a + g|)` of the angle of two unit vectors: the
    published ``arccos`` loses half of the digits of small angles, and its gradient is infinite at
    collinear points. Here value and gradient are finite everywhere. Where ``e = r`` or ``e' = e``,
    closer than 1e-6 (1e-12 in float64), there is no angle: 0, with gradient 0.

    Args:
        general, specific: e, e' ``(..., d)``.
        root: r ``(..., d)``.
    """
    ray = general - root
    way = specific - general
    shortest = _SHORTEST[ray.dtype]
    known = (square_norm(ray) >= shortest**2) & (square_norm(way) >= shortest**2)
    a, g = (
        v / torch.where(known, safe_sqrt(square_norm(v)), torch.ones_like(known, dtype=v.dtype))
        for v in (ray, way)
    )
    apart, along = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (a - g, a + g))
    return torch.where(known, 2 * torch.atan2(apart, along.where(known, 1.0)), 0.0).squeeze(-1)


def cone_half_aperture(general: Tensor, root: Tensor, epsilon: float) -> Tensor:
    r"""Half-aperture :math:`\arcsin(\min(1, \epsilon / |e - r|))` ``(...)`` of the cone at ``e`` in
    flat space, after Ganea et al.; a half-space, with gradient 0, closer to the root than
    ``epsilon``."""
    square = square_norm(general - root)
    return torch.atan2(
        torch.full_like(square, epsilon), safe_sqrt((square - epsilon**2).clamp(min=0))
    ).squeeze(-1)


def chain_triples(
    levels: int, chains: int, pairs: str | Sequence[tuple[int, int]] = "next"
) -> Tensor:
    """Triples of a batch of chains with a negative a level: ``(e_i, e_j, n_i)`` for pairs of levels
    ``i < j``.

    Args:
        levels: texts of a chain, from general to specific, at least 2.
        chains: their number b.
        pairs: ``"next"``: ``j = i + 1``; ``"all"``: a text is more general than all that follow it;
            or the pairs of levels themselves, from 0.

    Returns:
        int64 ``(T, 3)``, row numbers of a matrix in which all first texts of the chains come first,
        then all second ones, ..., then all first negatives, ... (level-major,
        ``2 * levels * chains`` rows). The negative of the last level is in none.
    """
    at_least(2, integer=True, levels=levels)
    known = [(i, j) for i in range(levels - 1) for j in range(i + 1, levels)]
    if isinstance(pairs, str):
        one_of(("next", "all"), **{"pairs, if not pairs of levels,": pairs})
        pairs = [(i, j) for i, j in known if pairs == "all" or j == i + 1]
    bad = [pair for pair in pairs if tuple(pair) not in known]
    if bad:
        raise ArgumentError(
            f"chain_triples: {levels} levels have no pair {tuple(bad[0])}: (i, j), 0 <= i < j < "
            f"{levels}."
        )
    rows = torch.tensor([(i, j, levels + i) for i, j in pairs])  # (pairs, 3)
    return (rows[:, None] * chains + torch.arange(chains)[:, None]).flatten(0, 1)


class ChainLoss(nn.Module, ABC):
    """Base of the losses on chains, with a prior that keeps embeddings near those of the original
    model.

    Args:
        prior: weight of ``(1 - mean(e . e°)) / 2``, where e° is the embedding of the same text by
            the model as it was.
    """

    def __init__(self, prior: float = 10.0):
        super().__init__()
        self.prior = prior

    @abstractmethod
    def order(
        self, general: Tensor, specific: Tensor, negative: Tensor, root: Tensor
    ) -> dict[str, Tensor]:
        """The weighted parts of the loss of triples: general, specific and negative embeddings
        ``(T, d)``."""

    def forward(
        self,
        embeddings: Tensor,
        triples: Tensor,
        root: Tensor,
        reference: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The weighted parts of the loss; their sum is the loss.

        Args:
            embeddings: unit vectors ``(N, d)``. Computed in float32 at least.
            triples: int64 ``(T, 3)``: rows of the general, the specific and the negative text.
            root: ``(d,)``; the prior does not include it.
            reference: unit vectors ``(N, d)`` of the model as it was; None: without that part.
            counts: how often each text occurs ``(N,)``; default: once.

        Raises:
            ValueError: there are no triples.
        """
        if not len(triples):
            raise ArgumentError(
                "A loss on chains needs at least one triple (general, specific, negative)."
            )
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        with exact(embeddings.device):
            embeddings = embeddings.to(dtype)
            root = root.to(dtype)
            general, specific, negative = (embeddings[rows] for rows in triples.T)
            parts = self.order(general, specific, negative, root)
            if reference is not None and self.prior:
                similarity = (embeddings * reference.to(dtype)).sum(-1)
                weights = torch.ones_like(similarity) if counts is None else counts.to(dtype)
                parts["loss_prior"] = (
                    self.prior * (1 - (similarity * weights).sum() / weights.sum()) / 2
                )
        return parts

    def extra_repr(self) -> str:
        numbers = {
            name: v
            for name, v in vars(self).items()
            if isinstance(v, (int, float)) and name != "training"
        }
        return ", ".join(f"{name}={value}" for name, value in numbers.items())


class RadialLoss(ChainLoss):
    """The contrastive loss of radial embeddings: exterior angles to more specific texts become
    small, and those to negatives large.

    With P and N the exterior angles of a triple's pairs: ``entail`` times mean(P) - mean(N), and
    ``hard`` times P - N at the largest P and at the smallest N of the batch. Neither term has a
    margin; both may be negative.

    Args:
        entail, hard, prior: weights; the official code's are 1, 1 and 10.
    """

    def __init__(self, entail: float = 1.0, hard: float = 1.0, prior: float = 10.0):
        super().__init__(prior)
        self.entail = entail
        self.hard = hard

    def order(
        self, general: Tensor, specific: Tensor, negative: Tensor, root: Tensor
    ) -> dict[str, Tensor]:
        p, n = radial_angle(general, torch.stack([specific, negative]), root)
        parts = dict(loss_entail=self.entail * (p.mean() - n.mean()))
        if self.hard:
            # one transfer: two would each wait for the GPU
            hardest = torch.stack([p.argmax(), n.argmin()])
            parts["loss_hard"] = self.hard * (p - n)[hardest].sum()
        return parts


class _ConeLoss(ChainLoss):
    """How far points lie outside of cones, with the weights of :class:`EntailmentConeLoss`."""

    def __init__(self, margin: float | None, entail: float, prior: float):
        super().__init__(prior)
        self.margin = margin
        self.entail = entail

    @abstractmethod
    def outside(self, general: Tensor, others: Tensor, root: Tensor) -> Tensor:
        """Angles ``(..., n)`` by which ``others`` ``(..., n, d)`` lie outside of the cones of the
        general points ``(n, d)``; below 0 inside."""

    def order(
        self, general: Tensor, specific: Tensor, negative: Tensor, root: Tensor
    ) -> dict[str, Tensor]:
        others = torch.stack([specific, negative])
        inside, outside = torch.relu(self.outside(general, others, root))
        parts = dict(loss_entail=self.entail * inside.mean())
        if self.margin is not None:
            parts["loss_negative"] = self.entail * torch.relu(self.margin - outside).mean()
        return parts


class EntailmentConeLoss(_ConeLoss):
    r"""Entailment cones in flat space: :math:`E(e, e') = \max(0, \Xi_r(e, e') - \theta_r(e))`, 0
    inside the cone.

    Args:
        epsilon: of :func:`cone_half_aperture`.
        margin: negatives are pushed out of the cone by this angle: plus the mean of
            :math:`\max(0, \gamma - E(e, n))` (Ganea et al., eq. 32); None: positives alone.
        entail, prior: weights.
    """

    def __init__(
        self,
        epsilon: float = 0.1,
        margin: float | None = None,
        entail: float = 1.0,
        prior: float = 10.0,
    ):
        super().__init__(margin, entail, prior)
        self.epsilon = epsilon

    def outside(self, general: Tensor, others: Tensor, root: Tensor) -> Tensor:
        aperture = cone_half_aperture(general, root, self.epsilon)
        return radial_angle(general, others, root) - aperture


class MERUEntailmentLoss(_ConeLoss):
    """MERU's entailment: cones on the hyperboloid, whose origin is put at the root.

    A point is ``expmap0(scale * (e - r))``, so that the distance from the origin orders texts as
    the distance from the root does.

    Args:
        c: curvature.
        min_radius, aperture_scale: of :func:`hypvision.geometry.lorentz.entailment_loss`.
        scale: length of ``e - r`` on the tangent space.
        margin, entail, prior: see :class:`EntailmentConeLoss`.
    """

    def __init__(
        self,
        c: float = 1.0,
        min_radius: float = 0.1,
        aperture_scale: float = 1.0,
        scale: float = 1.0,
        margin: float | None = None,
        entail: float = 1.0,
        prior: float = 10.0,
    ):
        super().__init__(margin, entail, prior)
        self.c = c
        self.min_radius = min_radius
        self.aperture_scale = aperture_scale
        self.scale = scale

    def outside(self, general: Tensor, others: Tensor, root: Tensor) -> Tensor:
        tips = lorentz.expmap0(self.scale * (general - root), self.c)
        points = lorentz.expmap0(self.scale * (others - root), self.c)
        aperture = self.aperture_scale * lorentz.half_aperture(tips, self.c, self.min_radius)
        return lorentz.exterior_angle(tips.expand_as(points), points, self.c) - aperture
