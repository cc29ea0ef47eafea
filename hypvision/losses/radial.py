r"""Losses that order texts from general to specific: radial embeddings, and entailment cones as an
alternative.

Alper and Averbuch-Elor, "Emergent Visual-Semantic Hierarchies in Image-Text Representations" (ECCV
2024). An embedding ``e`` is more general than ``e'`` if the direction from ``e`` to ``e'``
continues the direction from the root ``r`` to ``e``, that is if the *exterior angle*
:math:`\Xi_r(e, e') = \angle(e - r,\, e' - e)` is small. The alternatives require ``e'`` to lie in a
cone at ``e``: in flat space (Ganea et al., ICML 2018) or on the hyperboloid (MERU, Desai et al.,
ICML 2023).

All losses here are modules with the same arguments. Texts are rows of a matrix, each distinct text
once, and *triples* of row numbers give the supervision: (general, specific, negative). Chains of
any length and trees can be written as sets of triples; :func:`chain_triples` makes those of chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hypvision.geometry import lorentz
from hypvision.geometry.numerics import exact, safe_sqrt, square_norm
from hypvision.io import ArgumentError, at_least, one_of

# Shorter differences of unit vectors have no direction: those of equal texts differ by round-off.
_SHORTEST = {torch.float64: 1e-12, torch.float32: 1e-6}


def radial_angle(general: Tensor, specific: Tensor, root: Tensor) -> Tensor:
    r"""Return the exterior angle :math:`\Xi_r(e, e')` ``(...)`` in radians, the angle at ``e``
    between the ray from the root through ``e`` and the direction to ``e'``.

    It is computed in Kahan's form :math:`2\,\mathrm{atan2}(|a - g|, |a + g|)` for the angle of two
    unit vectors: the published ``arccos`` loses half of the digits of small angles, and its
    gradient is infinite at collinear points. Here value and gradient are finite everywhere. If ``e
    = r`` or ``e' = e`` (closer than 1e-6, or 1e-12 in float64) there is no angle, and the result is
    0 with gradient 0. Half precision is computed, and returned, in float32.

    Args:
        general, specific: the embeddings e and e' ``(..., d)``.
        root: the root r ``(..., d)``.
    """
    wide = torch.float32  # half precision has no such digits
    for x in (general, specific, root):
        wide = torch.promote_types(wide, x.dtype)
    general, specific, root = (x.to(wide) for x in (general, specific, root))
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
    r"""Return the half-aperture :math:`\arcsin(\min(1, \epsilon / |e - r|))` ``(...)`` of the
    entailment cone at ``e`` in flat space, after Ganea et al.; closer to the root than ``epsilon``
    the cone is a half-space, with gradient 0."""
    square = square_norm(general - root)
    ahead = safe_sqrt(square - epsilon**2)
    return torch.atan2(torch.full_like(square, epsilon), ahead).squeeze(-1)


def chain_triples(
    levels: int, chains: int, pairs: str | Sequence[tuple[int, int]] = "next"
) -> Tensor:
    """Return the triples of a batch of chains that have a negative at each level: ``(e_i, e_j,
    n_i)`` for pairs of levels ``i < j``.

    Args:
        levels: number of texts in a chain, from general to specific, at least 2.
        chains: number of chains in the batch.
        pairs: ``"next"``: ``j = i + 1``; ``"all"``: each text is more general than all that follow
            it; or the pairs of levels themselves, counted from 0.

    Returns:
        int64 ``(T, 3)``: row numbers in a matrix of ``2 * levels * chains`` rows, in which the
        first texts of all chains come first, then all second texts, ..., then all first negatives,
        ... The negative of the last level is in no triple.
    """
    at_least(2, integer=True, levels=levels)
    known = [(i, j) for i in range(levels - 1) for j in range(i + 1, levels)]
    if isinstance(pairs, str):
        one_of(("next", "all"), **{"pairs, if not pairs of levels,": pairs})
        pairs = [(i, j) for i, j in known if pairs == "all" or j == i + 1]
    bad = [pair for pair in pairs if tuple(pair) not in known]
    if bad:
        raise ArgumentError(
            f"chain_triples: {levels} levels have no pair {tuple(bad[0])}. Give pairs (i, j) with "
            f"0 <= i < j < {levels}."
        )
    # for each pair of levels the levels (pairs, 3) of the general, specific and negative text
    rows = torch.tensor([(i, j, levels + i) for i, j in pairs])
    return (rows[:, None] * chains + torch.arange(chains)[:, None]).flatten(0, 1)


class ChainLoss(nn.Module, ABC):
    """Base class of the losses on chains of texts, with a prior that keeps embeddings near those of
    the original model.

    Args:
        prior: weight of ``(1 - mean(e . e°)) / 2``, where e° is the embedding of the same text by
            the original model.
    """

    def __init__(self, prior: float = 10.0):
        super().__init__()
        self.prior = prior

    @abstractmethod
    def order(
        self, general: Tensor, specific: Tensor, negative: Tensor, root: Tensor
    ) -> dict[str, Tensor]:
        """Return the weighted parts of the loss of triples, whose general, specific and negative
        embeddings are ``(T, d)``."""

    def forward(
        self,
        embeddings: Tensor,
        triples: Tensor,
        root: Tensor,
        reference: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the weighted parts of the loss by name; the loss is their sum.

        Args:
            embeddings: unit vectors ``(N, d)``; computed with in float32 or float64.
            triples: int64 ``(T, 3)``: row numbers of the general, the specific and the negative
                text.
            root: the root ``(d,)``, which the prior does not include.
            reference: unit vectors ``(N, d)`` of the same texts by the original model; None: no
                prior.
            counts: how often each text occurs in the batch ``(N,)``; None: once.

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
    """The contrastive loss of radial embeddings: it makes exterior angles to more specific texts
    small, and those to negatives large.

    With the exterior angles P of a triple's general and specific text and N of its general and
    negative text, the loss is ``entail`` times mean(P) - mean(N), plus ``hard`` times P - N at the
    largest P and at the smallest N of the batch. Neither term has a margin; both may be negative.

    Args:
        entail, hard, prior: weights of the parts; 1, 1 and 10 in the official code.
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
            # both indices in one tensor, since each transfer of an index would wait for the GPU
            hardest = torch.stack([p.argmax(), n.argmin()])
            parts["loss_hard"] = self.hard * (p - n)[hardest].sum()
        return parts


class _ConeLoss(ChainLoss):
    """Loss of the angles by which points lie outside of cones; arguments: see
    :class:`EntailmentConeLoss`."""

    def __init__(self, margin: float | None, entail: float, prior: float):
        super().__init__(prior)
        self.margin = margin
        self.entail = entail

    @abstractmethod
    def outside(self, general: Tensor, others: Tensor, root: Tensor) -> Tensor:
        """Return the angles ``(2, n)`` by which ``others`` ``(2, n, d)`` lie outside of the cones
        of the general points ``(n, d)``; below 0 inside."""

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
    r"""Loss of entailment cones in flat space: :math:`E(e, e') = \max(0, \Xi_r(e, e') -
    \theta_r(e))`, which is 0 inside the cone at ``e``.

    Args:
        epsilon: see :func:`cone_half_aperture`.
        margin: angle :math:`\gamma` by which negatives are pushed out of the cone, by adding the
            mean of :math:`\max(0, \gamma - E(e, n))` (Ganea et al., eq. 32); None: the loss has no
            term of negatives.
        entail, prior: weights of the parts.
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
    """MERU's entailment loss: cones on the hyperboloid, whose origin is put at the root.

    An embedding ``e`` becomes the point ``expmap0(scale * (e - r))``, so that the distance from the
    origin orders texts as their distance from the root does.

    Args:
        c: minus the curvature of the hyperboloid.
        min_radius, aperture_scale: see :func:`hypvision.geometry.lorentz.entailment_loss`.
        scale: factor of ``e - r`` in the tangent space.
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
        ways = torch.cat([general.unsqueeze(0), others]) - root  # all points in one operation
        points = lorentz.expmap0(self.scale * ways, self.c)
        tips = points[0]
        aperture = self.aperture_scale * lorentz.half_aperture(tips, self.c, self.min_radius)
        return lorentz.exterior_angle(tips.expand_as(points[1:]), points[1:], self.c) - aperture
