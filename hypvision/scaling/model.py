"""The toy model, several at a time, and its loss and gradient in closed form.

``h = x W``, ``z = h W^T + b``, ``y = relu(z)``, with rows ``W_i`` that represent the features; the loss is the mean of
``(y - x)^2`` over the ``B n`` entries (the paper's ``L`` is ``n`` times that). Source: arXiv 2505.10465, Eq. 1.

Everything is in one tensor ``(G, M, n)`` for ``G`` models: ``W^T`` in the first rows, zeros below it for the narrower
ones (they stay zero: so do their gradients), ``b`` in the last row. With a hidden unit that is always 1 the bias needs
no care: ``z`` and all gradients are products of matrices. The short side stands first because that makes them fast:
with ``n x m`` two of the three take four times as long at m = 10.

With ``x`` sparse neither ``x`` nor ``y - x`` is needed as a matrix. Where ``x`` is 0 the gradient with respect to ``z``
is ``y`` itself, up to the factor ``2/(B n)``; at the about ``B`` active entries it is ``y - x`` if ``y > 0``, else 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hypvision.errors import HypvisionError
from hypvision.scaling.data import Batch

__all__ = ["check_width", "dense_loss", "initial", "joined", "loss", "loss_and_gradient", "parts"]

_CACHE_BYTES = 2**20  # of y at a time on a CPU: it is written and read four times


def check_width(m: int, n: int) -> None:
    """Raises HypvisionError unless ``1 <= m <= n``."""
    if not 1 <= m <= n:
        raise HypvisionError(f"The width is {m}, with {n} features. It must be at least 1 and no more than they are.")


def initial(n: int, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """``W = N(0, 1)/sqrt(m)``, ``(n, m)``, and then ``b = N(0, 1)``, ``(n,)``.

    Raises:
        HypvisionError: the model would be wider than there are features.
    """
    check_width(m, n)
    weight = torch.randn(n, m, generator=generator, dtype=dtype) / m**0.5
    return weight, torch.randn(n, generator=generator, dtype=dtype)


def joined(models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Several ``(W, b)`` as one tensor ``(G, M, n)``, where ``M`` is the largest width and one."""
    widest = max(weight.shape[1] for weight, _ in models)
    rows = [torch.cat([F.pad(w.T, (0, 0, 0, widest - w.shape[1])), b[None]]) for w, b in models]
    return torch.stack(rows).contiguous()


def parts(parameters: Tensor, index: int, m: int) -> tuple[Tensor, Tensor]:
    """``W`` ``(n, m)`` and ``b`` of one of the models."""
    return parameters[index, :m].T.contiguous(), parameters[index, -1].clone()


def dense_loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The loss of a dense batch ``(B, n)``, as the formula says it; autograd can differentiate it."""
    return (torch.relu(x @ weight @ weight.T + bias) - x).square().mean()


def loss(parameters: Tensor, batch: Batch, chunk: int | None = None) -> Tensor:
    """Mean squared errors of the models on a batch, float64 ``(G,)``."""
    sums = parameters.new_zeros(len(parameters), dtype=torch.float64)
    hidden = _hidden(parameters, batch)
    for _, y, missed in _outputs(parameters, hidden, batch, chunk):
        sums += _squares(y) + missed
    return sums / (batch.size * batch.features)


def loss_and_gradient(parameters: Tensor, batch: Batch, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the models on a batch they share.

    Args:
        parameters: ``(G, M, n)``, see :func:`joined`.
        batch: on the same device, its values of the same type.
        chunk: samples at a time; default: as many as a CPU's cache holds, all on a GPU.

    Returns:
        Mean squared errors, float64 ``(G,)``, and their gradients ``(G, M, n)``.
    """
    models, rows, n = parameters.shape
    sums = parameters.new_zeros(models, dtype=torch.float64)
    gradient = torch.zeros_like(parameters)
    hidden = _hidden(parameters, batch)
    backward = torch.empty_like(hidden)  # of the hidden units
    for part, y, missed in _outputs(parameters, hidden, batch, chunk):
        sums += _squares(y) + missed
        gradient.baddbmm_(hidden[:, part].transpose(1, 2), y)
        backward[:, part] = torch.bmm(parameters, y.transpose(1, 2)).transpose(1, 2)
    back = _weighted_sums(backward, batch.rows[batch.by_column], batch.values[batch.by_column], batch.column_offsets)
    gradient[:, :-1] += back.transpose(1, 2)[:, :-1]
    count = batch.size * n
    return sums / count, gradient.mul_(2 / count)


def _hidden(parameters: Tensor, batch: Batch) -> Tensor:
    """``(G, B, M)``, the last unit 1."""
    rows = parameters.transpose(1, 2).contiguous()
    hidden = _weighted_sums(rows, batch.columns, batch.values, batch.row_offsets)
    hidden[..., -1] = 1
    return hidden


def _outputs(
    parameters: Tensor, hidden: Tensor, batch: Batch, chunk: int | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Slices of the batch; ``y - x`` there, and 0 where ``y`` is; the squares of ``x`` where ``y`` is 0, ``(G,)``.

    The second is the gradient with respect to ``z``, up to a factor, and the sum of its squares lacks just the third.
    """
    models, _, n = parameters.shape
    if chunk is None:
        size = max(1, _CACHE_BYTES // (n * parameters.element_size()))
        chunk = batch.size if parameters.is_cuda else size
    starts, bounds = range(0, batch.size, chunk), [0, len(batch.rows)]
    if len(starts) > 1:  # not on a GPU, which would have to wait for the numbers
        bounds = batch.row_offsets[torch.tensor([*starts, batch.size])].tolist()
    for i, start in enumerate(starts):
        part = slice(start, min(start + chunk, batch.size))
        y = torch.bmm(hidden[:, part], parameters).relu_()
        active = slice(bounds[i], bounds[i + 1])
        flat = (batch.rows[active] - start) * n + batch.columns[active]
        values = batch.values[active]
        entries = y.view(models, -1)
        before = entries.index_select(1, flat)
        on = before > 0
        entries.index_copy_(1, flat, torch.where(on, before - values, 0))
        yield part, y, torch.where(on, 0, values.double().square()).sum(1)


def _squares(y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(y.flatten(1), dim=1).double().square()


def _weighted_sums(table: Tensor, index: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """``out[g, i] = sum of weights[k] table[g, index[k]]`` over the ``k`` from ``offsets[i]`` to ``offsets[i + 1]``."""
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
