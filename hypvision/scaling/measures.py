"""Measures of trained weights: which features are represented, and how much they interfere with
each other.

The rows ``W_i`` of matrices ``(n, m)`` represent features, of the toy model or of a language
model's head (tokens). Source: arXiv 2505.10465, Sections 2 and 3, Appendices B and D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.io import at_least

_BLOCK = 1024  # rows per block: two blocks have 4 MiB of overlaps


class Norms(NamedTuple):
    """Mean, standard deviation (unbiased), least and largest norm of the rows of a matrix."""

    mean: float
    std: float
    least: float
    largest: float


class Overlaps(NamedTuple):
    """Statistics of the overlaps ``w_i . w_j / (|w_i| |w_j|)`` of all pairs ``i < j`` of ``rows``
    rows: mean and standard deviation of the absolute overlaps, mean and variance of the squared
    ones, and the largest absolute one."""

    rows: int
    mean_absolute: float
    std_absolute: float
    mean: float
    variance: float
    largest: float


class Frame(NamedTuple):
    """How far unit vectors are from an equiangular tight frame (ETF), which spreads them as far
    apart as possible.

    Attributes:
        bound: Welch's bound: the least that the largest absolute overlap can be.
        excess: by how much the largest absolute overlap exceeds ``bound``; for ``m`` vectors or
            more it is 0 only for an ETF.
        potential: the sum of the squared overlaps of all ordered pairs, with each vector's pair
            with itself, divided by the least possible value of this sum (Benedetto and Fickus,
            2003); 1 for tight frames, and for orthonormal vectors.
        deviation: standard deviation of the absolute overlaps; 0 if all are equal (equiangular).
        possible: whether the vectors are few enough for a real ETF: at most ``m (m + 1) / 2``
            (Gerzon's bound).
    """

    bound: float
    excess: float
    potential: float
    deviation: float
    possible: bool


def norms(weight: Tensor, block: int = _BLOCK) -> Norms:
    """Return statistics of the row norms of a matrix ``(n, m)``, computed by blocks of rows; half
    precision becomes float32."""
    values = torch.cat(
        [torch.linalg.vector_norm(_wide(part), dim=1) for part in weight.split(block)]
    ).double()
    spread = values.std().item() if len(values) > 1 else math.nan
    return Norms(values.mean().item(), spread, values.min().item(), values.max().item())


def represented(weight: Tensor, least: float = 0.5) -> float:
    """Return the share of rows whose norm exceeds ``least``: the paper's phi_1/2, or phi_1 with
    ``least`` 1."""
    return (torch.linalg.vector_norm(weight, dim=1) > least).double().mean().item()


def overlaps(weight: Tensor, block: int = _BLOCK) -> Overlaps:
    """Return statistics of the overlaps of the rows of a matrix ``(n, m)``, with sums in float64;
    NaN for fewer than two rows. Rows of zeros have the overlap 0 with all others.

    Only two blocks of rows and their ``block^2`` overlaps are in memory; half precision becomes
    float32 block by block, so that a mapped file is never in memory as a whole.
    """
    at_least(1, integer=True, block=block)
    n = len(weight)
    pairs = n * (n - 1) // 2
    if not pairs:
        return Overlaps(n, *[math.nan] * 5)
    first = second = fourth = largest = 0.0
    for found in _blocks_above_diagonal(weight.split(block)):
        found = found.abs_()
        largest = max(largest, found.max().item())
        first += found.sum(dtype=torch.float64).item()
        found = found.square_()
        second += found.sum(dtype=torch.float64).item()
        fourth += found.square_().sum(dtype=torch.float64).item()
    mean_absolute = first / pairs
    mean = second / pairs
    squared = fourth / pairs
    return Overlaps(
        n,
        mean_absolute,
        max(0.0, mean - mean_absolute**2) ** 0.5,
        mean,
        max(0.0, squared - mean**2),
        largest,
    )


def _blocks_above_diagonal(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    for i, part in enumerate(parts):
        rows = _unit(part)
        # The zeros below the diagonal change neither the sums nor the maximum.
        yield (rows @ rows.T).triu_(diagonal=1)
        for other in parts[i + 1 :]:
            yield rows @ _unit(other).T


def _unit(rows: Tensor) -> Tensor:
    rows = _wide(rows)
    return torch.nn.functional.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny)


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def random_overlaps(m: int) -> tuple[float, float]:
    """Return the mean and the variance of the squared overlap of random unit vectors in ``m``
    dimensions."""
    return 1 / m, 2 * (m - 1) / (m**2 * (m + 2))


def welch_bound(count: int, m: int) -> float:
    """Return the least that the largest absolute overlap of ``count`` unit vectors in ``m``
    dimensions can be.

    Equiangular tight frames reach it, as all of their overlaps are equal; real ones have at most m
    (m + 1)/2 vectors.
    """
    at_least(2, integer=True, vectors=count)
    at_least(1, integer=True, dimensions=m)
    return math.sqrt(max(0.0, count - m) / (m * (count - 1)))


def frame(found: Overlaps, m: int) -> Frame:
    """Return how far the vectors in ``m`` dimensions, whose overlaps are given, are from an
    equiangular tight frame."""
    count = found.rows
    bound = welch_bound(found.rows, m)
    potential = count + count * (count - 1) * found.mean
    return Frame(
        bound,
        found.largest - bound,
        potential / max(count, count**2 / m),
        found.std_absolute,
        count <= m * (m + 1) // 2,
    )


def unlearned_loss(p: Tensor, learned: float | Tensor) -> tuple[float, float]:
    """Return the loss ``L`` that the toy model has in weak superposition, if some features are
    represented perfectly and the others are lost; and an approximation of it.

    The best that a bias can do for a lost feature is ``b_i = p_i``. This gives ``sum (4/3 p_i -
    p_i^2)`` over the lost features, approximately ``4/3 sum p_i``. ``p`` ``(n,)`` are falling
    frequencies; ``learned`` is a mask ``(n,)`` of the perfect features, or how many of the most
    frequent ones are perfect.
    """
    lost = p.double()
    lost = lost[~learned] if isinstance(learned, Tensor) else lost[round(learned) :]
    return (4 / 3 * lost - lost.square()).sum().item(), 4 / 3 * lost.sum().item()


def ambiguity(weight: Tensor) -> float:
    """Return how far weights ``(n, m)`` are from ideal weak superposition, in which the first ``m``
    features are kept as they are.

    This is the spectral norm of ``W W^T - diag(1, ..., 1, 0, ..., 0)`` with ``m`` ones, computed in
    the space of at most ``2 m`` dimensions in which that matrix acts.
    """
    n, m = weight.shape
    weight = weight.double()
    # With the first m unit vectors E and [W E] = Q R, the matrix is
    # W W^T - E E^T = [W E] diag(1, -1) [W E]^T = Q (R diag(1, -1) R^T) Q^T.
    _, r = torch.linalg.qr(torch.cat([weight, torch.eye(n, m, dtype=weight.dtype)], dim=1))
    signs = torch.cat([weight.new_ones(m), -weight.new_ones(m)])
    return torch.linalg.eigvalsh((r * signs) @ r.T).abs().max().item()
