"""Measures of trained weights: which features are represented, and how much they interfere.

Rows ``W_i`` of ``(n, m)`` matrices represent features; here they are those of the toy model or of a
language model's head. Source: arXiv 2505.10465, Sections 2 and 3, Appendices B and D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.io.checks import at_least

_BLOCK = 1024  # rows per block: 4 MiB of overlaps


class Norms(NamedTuple):
    """Mean, standard deviation (unbiased), least and largest norm of the rows."""

    mean: float
    std: float
    least: float
    largest: float


class Overlaps(NamedTuple):
    """Overlaps ``w_i . w_j / (|w_i| |w_j|)`` of all pairs ``i < j`` of so many rows: mean and
    deviation of the absolute ones, mean and variance of the squared ones, and the largest absolute
    one."""

    rows: int
    mean_absolute: float
    std_absolute: float
    mean: float
    variance: float
    largest: float


class Frame(NamedTuple):
    """How far unit vectors are from an equiangular tight frame (ETF), which spreads them out as far
    as can be.

    Attributes:
        bound: Welch's, below which the largest absolute overlap cannot be.
        excess: how much the largest absolute overlap exceeds the bound; for ``m`` vectors or more
            it is 0 for an ETF only.
        potential: the sum of the squared overlaps of all ordered pairs, each vector with itself
            too, divided by the least that it can be (Benedetto and Fickus, 2003); 1 for tight
            frames, and for orthonormal vectors.
        deviation: standard deviation of the absolute overlaps; 0 if they are equiangular.
        possible: whether there are few enough for a real ETF, ``m (m + 1) / 2`` or less (Gerzon's
            bound).
    """

    bound: float
    excess: float
    potential: float
    deviation: float
    possible: bool


def norms(weight: Tensor, block: int = _BLOCK) -> Norms:
    """Statistics of the row norms of ``(n, m)``, by blocks of rows; what is half precision becomes
    float32."""
    values = torch.cat(
        [torch.linalg.vector_norm(_wide(part), dim=1) for part in weight.split(block)]
    ).double()
    spread = values.std().item() if len(values) > 1 else math.nan
    return Norms(values.mean().item(), spread, values.min().item(), values.max().item())


def represented(weight: Tensor, least: float = 0.5) -> float:
    """The share of rows whose norm exceeds ``least``: phi_1/2 of the paper, or phi_1."""
    return (torch.linalg.vector_norm(weight, dim=1) > least).double().mean().item()


def overlaps(weight: Tensor, block: int = _BLOCK) -> Overlaps:
    """Overlaps of the rows of ``(n, m)``, with sums in float64; those of fewer than two rows are
    NaN, and rows of zeros overlap with nothing.

    Two blocks of rows and ``block^2`` overlaps are in memory; what is half precision becomes
    float32, block by block, so that a mapped file is never in memory as a whole.
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
        # the zeros below the diagonal change neither sums nor the maximum
        yield (rows @ rows.T).triu_(diagonal=1)
        for other in parts[i + 1 :]:
            yield rows @ _unit(other).T


def _unit(rows: Tensor) -> Tensor:
    rows = _wide(rows)
    return torch.nn.functional.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny)


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def random_overlaps(m: int) -> tuple[float, float]:
    """Mean and variance of the squared overlap of random unit vectors in ``m`` dimensions."""
    return 1 / m, 2 * (m - 1) / (m**2 * (m + 2))


def welch_bound(count: int, m: int) -> float:
    """The least that the largest absolute overlap of ``count`` unit vectors in ``m`` dimensions can
    be.

    Equiangular tight frames reach it, all their overlaps being equal; real ones have no more than m
    (m + 1)/2 vectors.
    """
    at_least(2, integer=True, vectors=count)
    at_least(1, integer=True, dimensions=m)
    return math.sqrt(max(0.0, count - m) / (m * (count - 1)))


def frame(found: Overlaps, m: int) -> Frame:
    """How far overlaps of vectors in ``m`` dimensions are from an equiangular tight frame's."""
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
    """The loss ``L`` if some features are perfect and the others lost: weak superposition.

    The best that a bias can do for a lost feature is ``b_i = p_i``. This gives
    ``sum (4/3 p_i - p_i^2)`` over the lost features, and its approximation ``4/3 sum p_i``, from
    falling frequencies ``p`` ``(n,)`` and the features that are perfect: bool ``(n,)``, or how many
    of the most frequent ones.
    """
    lost = p.double()
    lost = lost[~learned] if isinstance(learned, Tensor) else lost[round(learned) :]
    return (4 / 3 * lost - lost.square()).sum().item(), 4 / 3 * lost.sum().item()


def ambiguity(weight: Tensor) -> float:
    """How far weights are from ideal weak superposition, which keeps the first ``m`` features as
    they are.

    The spectral norm of ``W W^T - diag(1, ..., 1, 0, ..., 0)`` with ``m`` ones, computed from the
    ``2 m`` vectors that it acts on.
    """
    n, m = weight.shape
    weight = weight.double()
    # W W^T - E E^T = [W E] diag(1, -1) [W E]^T = Q (R diag(1, -1) R^T) Q^T with [W E] = Q R
    _, r = torch.linalg.qr(torch.cat([weight, torch.eye(n, m, dtype=weight.dtype)], dim=1))
    signs = torch.cat([weight.new_ones(m), -weight.new_ones(m)])
    return torch.linalg.eigvalsh((r * signs) @ r.T).abs().max().item()
