"""Embedding tables whose rows are points of a manifold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Manifold, ManifoldParameter, Product
from hypvision.io import ArgumentError, at_least

from .checks import check_manifold, check_sizes


class HyperbolicEmbedding(nn.Module):
    """``nn.Embedding`` on a manifold: a table of points that are looked up by their numbers.

    Args:
        num_embeddings: number of points.
        embedding_dim: dimension ``n`` of the space (points on the hyperboloid have ``n + 1``
            coordinates).
        manifold: the manifold of the points.
        std: standard deviation of the initial points' tangent vectors; ``0.1 / sqrt(n)`` by
            default, a radius of 0.1.
        padding_idx: number of a point that stays at the origin and gets no gradient.
        sparse: whether gradients are sparse, for the sparse updates of :mod:`hypvision.optim`.

    Shapes:
        integers ``(...)`` to points ``(..., n)`` or ``(..., n + 1)``.
    """

    manifold_parameters = ("weight",)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        manifold: Manifold,
        std: float | None = None,
        padding_idx: int | None = None,
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Manifold, manifold=manifold)
        check_sizes(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if isinstance(manifold, Product) and sum(manifold.dims) != embedding_dim:
            raise ArgumentError(
                f"HyperbolicEmbedding: embedding_dim must be the dimension {sum(manifold.dims)} of "
                f"the product, got {embedding_dim}."
            )
        std = 0.1 * embedding_dim**-0.5 if std is None else std
        at_least(0, std=std)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"HyperbolicEmbedding: padding_idx must be one of the {num_embeddings} rows, got "
                f"{padding_idx}."
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.manifold = manifold
        self.padding_idx = padding_idx
        self.sparse = sparse
        with torch.no_grad():
            points = manifold.random(
                num_embeddings, embedding_dim, std=std, device=device, dtype=dtype
            )
            if padding_idx is not None:
                points[padding_idx] = manifold.origin(embedding_dim, device=device, dtype=dtype)
        self.weight = ManifoldParameter(points, manifold)

    def forward(self, index: Tensor) -> Tensor:
        if index.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                "HyperbolicEmbedding: index must be a tensor of integers (int64), got "
                f"{index.dtype}."
            )
        return F.embedding(index, self.weight, self.padding_idx, sparse=self.sparse)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
