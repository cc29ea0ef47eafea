"""The toy model of superposition, several models at a time, with loss and gradient in closed form.

``h = x W``, ``z = h W^T + b``, ``y = relu(z)``, with rows ``W_i`` that represent the features; the
loss is the mean of ``(y - x)^2`` over the ``B n`` entries (the paper's ``L`` is ``n`` times that).
Source: arXiv 2505.10465, Eq. 1.

All ``G`` models are in one tensor ``(G, M, n)``: ``W^T`` in the first rows, rows of zeros below it
for narrower models (they stay zero, as do their gradients), and ``b`` in the last row. With a
hidden unit that is always 1 the bias needs no code of its own: ``z`` and all gradients are products
of matrices. The short side stands first because this makes the products fast: with ``n x m`` two of
the three take four times as long at m = 10.

As ``x`` is sparse, neither ``x`` nor ``y - x`` is needed as a matrix. Where ``x`` is 0 the gradient
with respect to ``z`` is ``y`` itself, up to the factor ``2/(B n)``; at the about ``B`` active
entries it is ``y - x`` if ``y > 0``, else 0. Samples without a feature all give ``y = relu(b)``, so
they cost one vector however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hypvision.io import between

from .data import Batch

# Bytes of the outputs y that are computed at a time on a CPU: half of the cache of a core.
_CACHE_BYTES = 2**19


def initial(
    n: int, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return the first weights of a model, drawn in this order: ``W = N(0, 1)/sqrt(m)``, ``(n,
    m)``, and ``b = N(0, 1)``, ``(n,)``."""
    between(1, n, integer=True, width=m)
    weight = torch.randn(n, m, generator=generator, dtype=dtype) / m**0.5
    return weight, torch.randn(n, generator=generator, dtype=dtype)


def joined(models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return several models ``(W, b)`` as one tensor ``(G, M, n)``, where ``M`` is the largest
    width plus one."""
    widest = max(weight.shape[1] for weight, _ in models)
    rows = [torch.cat([F.pad(w.T, (0, 0, 0, widest - w.shape[1])), b[None]]) for w, b in models]
    return torch.stack(rows).contiguous()


def parts(parameters: Tensor, index: int, m: int) -> tuple[Tensor, Tensor]:
    """Return ``W`` ``(n, m)`` and ``b`` ``(n,)`` of model ``index``, whose width is ``m``."""
    return parameters[index, :m].T.contiguous(), parameters[index, -1].clone()


def loss(parameters: Tensor, batch: Batch, chunk: int | None = None) -> Tensor:
    """Return the mean squared error of each model on a batch, float64 ``(G,)``."""
    features = parameters.transpose(1, 2).contiguous()
    hidden = _hidden(features, batch)
    active, sums = _active_errors(features, hidden, batch)
    for _, error in _errors(parameters, hidden, batch, active, chunk):
        sums += _squares(error)
    sums += batch.empty * _squares(_idle(parameters))
    return sums / (batch.size * batch.features)


def loss_and_gradient(
    parameters: Tensor, batch: Batch, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean squared errors, float64 ``(G,)``, and the gradients ``(G, M, n)`` of models
    (:func:`joined`) on a batch of the same device and type. ``chunk`` samples are computed at a
    time; None: as many as a CPU's cache holds, or all on a GPU."""
    features = parameters.transpose(1, 2).contiguous()
    hidden = _hidden(features, batch)
    active, sums = _active_errors(features, hidden, batch)
    gradient = torch.zeros_like(parameters)
    # the gradient with respect to the hidden units
    backward = torch.empty_like(hidden.transpose(1, 2), memory_format=torch.contiguous_format)
    for part, error in _errors(parameters, hidden, batch, active, chunk):
        sums += _squares(error)
        gradient.baddbmm_(hidden[:, part].transpose(1, 2), error)
        backward[..., part] = torch.bmm(parameters, error.transpose(1, 2))
    idle = _idle(parameters)
    sums += batch.empty * _squares(idle)
    gradient[:, -1].add_(idle, alpha=batch.empty)
    order = batch.by_column
    back = _weighted_sums(
        backward.transpose(1, 2), batch.rows[order], batch.values[order], batch.column_offsets
    )
    gradient[:, :-1] += back.transpose(1, 2)[:, :-1]
    count = batch.size * batch.features
    return sums / count, gradient.mul_(2 / count)


def _hidden(features: Tensor, batch: Batch) -> Tensor:
    """Return the hidden units ``(G, S, M)`` of the S samples with features, the last unit 1;
    ``features`` are the parameters as ``(G, n, M)``."""
    hidden = _weighted_sums(features, batch.columns, batch.values, batch.row_offsets)
    hidden[..., -1] = 1
    return hidden


def _idle(parameters: Tensor) -> Tensor:
    """Return the models' output ``(G, n)`` for a sample without features, which is also its error
    and, up to a factor, the gradient with respect to ``z``."""
    return parameters[:, -1].relu()


def _active_errors(features: Tensor, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the errors ``y - x`` at the K active entries, ``(G, K)``, which are 0 where ``y`` is
    0; and the sum of the squares of ``x`` at those, ``(G,)``."""
    z = (hidden[:, batch.rows] * features[:, batch.columns]).sum(-1)
    on = z > 0
    missed = torch.where(on, 0, batch.values.double().square()).sum(1)
    return torch.where(on, z - batch.values, 0), missed


def _errors(
    parameters: Tensor, hidden: Tensor, batch: Batch, active: Tensor, chunk: int | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the samples with features and their errors ``y - x``, ``(G, chunk, n)``,
    which are 0 where ``y`` is 0.

    These errors are the gradient with respect to ``z``, up to a factor.
    """
    models, _, n = parameters.shape
    if chunk is None:
        size = max(1, _CACHE_BYTES // (models * n * parameters.element_size()))
        chunk = max(1, batch.occupied) if parameters.is_cuda else size
    starts = range(0, batch.occupied, chunk)
    bounds = [0, len(batch.rows)]
    if len(starts) > 1:  # not for the one chunk on a GPU, where the CPU would wait for the numbers
        bounds = batch.row_offsets[torch.tensor([*starts, batch.occupied])].tolist()
    place = batch.rows % chunk * n + batch.columns
    for i, start in enumerate(starts):
        part = slice(start, min(start + chunk, batch.occupied))
        entries = slice(bounds[i], bounds[i + 1])
        error = torch.bmm(hidden[:, part], parameters).relu_()
        error.view(models, -1).index_copy_(1, place[entries], active[:, entries])
        yield part, error


def _squares(y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(y.flatten(1), dim=1).double().square()


def _weighted_sums(table: Tensor, index: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """Return ``out[g, i]``, the sum of ``weights[k] table[g, index[k]]`` over the ``k`` from
    ``offsets[i]`` to ``offsets[i + 1]``."""
    models, rows, width = table.shape
    groups = torch.arange(models, device=table.device)[:, None]
    sums = F.embedding_bag(
        (index + groups * rows).flatten(),
        table.reshape(-1, width),
        (offsets[:-1] + groups * len(index)).flatten(),
        mode="sum",
        per_sample_weights=weights.expand(models, -1).reshape(-1),
    )
    return sums.view(models, -1, width)
