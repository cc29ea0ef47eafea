"""Sparse features: their frequencies, and batches of them.

Feature ``i`` of a sample is ``x_i = u_i v_i`` with ``u_i ~ Bernoulli(p_i)`` and ``v_i ~ U(0, 2)``,
all independent. The frequencies sum to 1, so that about one feature of a sample is active: a batch
of ``B`` samples is a list of about ``B`` triplets (sample, feature, value), and that is how it is
drawn here, from ``O(B)`` random numbers instead of ``2 B n``. Source: arXiv 2505.10465, Section 2
and Appendix B.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.io import HypvisionError, at_least, between, one_of

DISTRIBUTIONS = ("power", "exponential1", "exponential", "linear")
_HEAVY = 1 / 8  # features with a higher frequency are drawn sample by sample


def frequencies(name: str, n: int, alpha: float = 1.0) -> Tensor:
    """Return the frequencies of ``n`` features, which sum to 1, the most frequent first.

    Args:
        name: the form of the frequencies before they are normalised: ``power`` (``i^-alpha``),
            ``exponential1`` (``exp(-(i-1)/400)``, used in the paper's figures), ``exponential``
            (``exp(-(i-1)/1000)``) or ``linear`` (``n - i + 1``).
        n: number of features.
        alpha: exponent of ``power``.

    Returns:
        The frequencies, float64 ``(n,)``.
    """
    at_least(1, integer=True, n=n)
    one_of(DISTRIBUTIONS, distribution=name)
    i = torch.arange(n, dtype=torch.float64)
    if name == "power":
        p = (i + 1) ** -alpha
    elif name == "exponential1":
        p = torch.exp(-i / 400)
    elif name == "exponential":
        p = torch.exp(-i / 1000)
    else:
        p = n - i
    p = p / p.sum()
    # An alpha that is NaN, or so far from 0 that the sum is 0 or infinite, is an error here.
    check_frequencies(p, density=1.0)
    return p


def density_scan(p: Tensor, s: float) -> Tensor:
    """Return frequencies with more active features a sample: ``p (1 + s (1/p_1 - 1))``, where ``p``
    ``(n,)`` sums to 1 with the largest first, and ``s`` from 0 to 1 moves ``p_1`` from its value to
    1."""
    check_frequencies(p, density=1.0)
    between(0, 1, s=s)
    return (p * (1 + s * (1 / p.max() - 1))).clamp_max(1)  # rounding may give p_1 above 1


def check_frequencies(p: Tensor, density: float | None = None) -> None:
    """Raise an error for frequencies that are not in [0, 1], or whose sum is not ``density`` (None:
    any sum)."""
    if p.dim() != 1 or not p.numel():
        raise HypvisionError(
            "Frequencies must be a vector, one number for each feature, got the shape "
            f"{tuple(p.shape)}."
        )
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise HypvisionError("Frequencies must be numbers from 0 to 1; some are not.")
    total = float(p.double().sum())
    if density is not None and abs(total - density) > 1e-4 * density:
        raise HypvisionError(
            f"The frequencies sum to {total:.6g} instead of {density:g}. Scale them to this sum."
        )


def stream(*words: object) -> torch.Generator:
    """Return a random generator on the CPU whose seed depends on ``words`` alone, so that the same
    words always give the same batch."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


class Batch(NamedTuple):
    """A sparse batch: triplets (sample, feature, value), ordered by sample and then by feature.

    Samples without a feature, a quarter to a third of all at density 1, are all the same to the
    model, so they are only counted.

    Attributes:
        rows, columns: ``(K,)`` int64, for each triplet the number of its sample, among the ``S``
            samples that have features, and of its feature.
        values: ``(K,)``, the value of each triplet.
        row_offsets: ``(S + 1,)``, the positions at which the triplets of each sample begin.
        by_column: ``(K,)``, the positions of the triplets in the order of their features.
        column_offsets: ``(n + 1,)``, where the triplets of each feature begin in ``by_column``.
        empty: number of samples without a feature.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    row_offsets: Tensor
    by_column: Tensor
    column_offsets: Tensor
    empty: int

    @property
    def occupied(self) -> int:
        """Number ``S`` of samples that have features."""
        return len(self.row_offsets) - 1

    @property
    def size(self) -> int:
        """Number ``B`` of samples."""
        return self.occupied + self.empty

    @property
    def features(self) -> int:
        """Number ``n`` of features."""
        return len(self.column_offsets) - 1

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """Return the batch on another device, with its values in another type."""
        tensors = {
            name: getattr(self, name).to(device, non_blocking=True) for name in self._fields[:-1]
        }
        return self._replace(**tensors | {"values": tensors["values"].to(dtype)})

    def dense(self) -> Tensor:
        """Return the batch as a matrix ``x``, ``(B, n)``, with the empty samples last."""
        x = self.values.new_zeros(self.size, self.features)
        x[self.rows, self.columns] = self.values
        return x


def _batch(samples: Tensor, columns: Tensor, values: Tensor, size: int, features: int) -> Batch:
    counts = torch.bincount(samples, minlength=size)
    has = counts > 0
    rows = (has.cumsum(0) - 1)[samples]
    by_column = torch.argsort(columns, stable=True)
    ends = [count.cumsum(0) for count in (counts[has], torch.bincount(columns, minlength=features))]
    row_offsets, column_offsets = (torch.cat([columns.new_zeros(1), end]) for end in ends)
    return Batch(
        rows, columns, values, row_offsets, by_column, column_offsets, size - len(row_offsets) + 1
    )


def sparse(x: Tensor) -> Batch:
    """Return a dense batch ``(B, n)`` as triplets, in the order of the samples; empty samples are
    only counted."""
    rows, columns = x.nonzero(as_tuple=True)
    return _batch(rows, columns, x[rows, columns], *x.shape)


def sample(p: Tensor, size: int, generator: torch.Generator) -> Batch:
    """Draw a batch of ``size`` samples whose features have the frequencies ``p``.

    The number of samples that have feature ``i`` is binomial; which samples these are is a draw
    without replacement, in which what came twice is drawn again. Frequent features, for which much
    would be drawn again, are drawn sample by sample.

    The frequencies ``p`` ``(n,)``, in [0, 1], and the generator are on the CPU. The values are
    float32, with the same distribution as those that the paper's code draws as two uniform
    matrices.
    """
    check_frequencies(p)
    heavy = p > _HEAVY
    often = heavy.nonzero().flatten()
    rare = (~heavy).nonzero().flatten()
    drawn = torch.rand(len(often), size, generator=generator) < p[often].float()[:, None]
    which, rows = drawn.nonzero(as_tuple=True)
    frequent = rows * len(p) + often[which]

    counts = torch.binomial(
        torch.full((len(rare),), float(size), dtype=torch.float64), p[rare].double(), generator
    )
    left = counts.long()
    entries = rare.new_empty(0)
    while total := int(left.sum()):
        features = torch.repeat_interleave(torch.arange(len(rare)), left)
        tried = features * size + torch.randint(size, (total,), generator=generator)
        entries = torch.unique(torch.cat([entries, tried]))
        left = counts.long() - torch.bincount(entries // size, minlength=len(rare))
    flat, _ = torch.cat([frequent, entries % size * len(p) + rare[entries // size]]).sort()
    values = torch.rand(len(flat), generator=generator) * 2
    return _batch(flat // len(p), flat % len(p), values, size, len(p))
