"""Proxy-Anchor, the metric loss of the HIER recipes, and Proxy-NCA, which HIER's code offers as an
alternative."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry.numerics import exact, heading, precise, readable
from hypvision.io import ArgumentError

# A similarity maps vectors (N, d) and (M, d) to a matrix (N, M).
Similarity = Callable[[Tensor, Tensor], Tensor]


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Return the cosines ``(N, M)`` of vectors ``(N, d)`` and ``(M, d)``."""
    return F.linear(heading(x)[0], heading(y)[0])


class ProxyAnchorLoss(nn.Module):
    r"""Proxy-Anchor loss (Kim et al., CVPR 2020, eq. 4) on the directions of embeddings.

    .. math:: \frac{1}{|P^+|}\sum_{p \in P^+}
              \log\Big(1 + \sum_{x \in X_p^+} e^{-\alpha(s(x,p) - \delta)}\Big)
              + \frac{1}{|P|}\sum_{p}
              \log\Big(1 + \sum_{x \in X_p^-} e^{\alpha(s(x,p) + \delta)}\Big)

    with the cosine :math:`s`, all proxies :math:`P`, and the proxies :math:`P^+` of the classes in
    the batch.

    Args:
        num_classes: number of training classes, each of which has one proxy.
        dim: dimension of the embeddings.
        margin: the margin :math:`\delta`.
        alpha: the factor :math:`\alpha` of the similarities.

    Shapes:
        vectors ``(B, dim)`` of any length and labels ``(B,)``, to a scalar.
    """

    def __init__(self, num_classes: int, dim: int, margin: float = 0.1, alpha: float = 32.0):
        super().__init__()
        self.margin = margin
        self.alpha = alpha
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        own, attract, repel = self._terms(x, labels, cosines, 0)
        return attract.sum() / own.any(0).sum() + repel.sum() / len(self.proxies)

    def _terms(
        self, x: Tensor, labels: Tensor, similarity: Similarity, dim: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mask ``(B, K)`` of each sample's own proxy, and ``log(1 + sum)`` with sums
        along ``dim`` over own and over other proxies."""
        if labels.numel() and readable(labels) and int(labels.max()) >= len(self.proxies):
            raise ArgumentError(
                f"There are {len(self.proxies)} class proxies, but a label is {int(labels.max())}. "
                "Labels must be from 0 to one less than num_classes."
            )
        with exact(x.device):
            x = precise(x)
            found = similarity(x, self.proxies.to(x.dtype))
            own = F.one_hot(labels, len(self.proxies)).bool()
            # log(1 + sum(exp(z))) is computed as the log-sum-exp of z and 0
            positive = (-self.alpha * (found - self.margin)).masked_fill(~own, -torch.inf)
            negative = (self.alpha * (found + self.margin)).masked_fill(own, -torch.inf)
            zero = found.new_zeros(1).expand_as(found.narrow(dim, 0, 1))
            attract, repel = (
                torch.logsumexp(torch.cat([zero, z], dim), dim) for z in (positive, negative)
            )
            return own, attract, repel

    def extra_repr(self) -> str:
        return f"num_classes={len(self.proxies)}, margin={self.margin}, alpha={self.alpha}"


class ProxyNCALoss(ProxyAnchorLoss):
    r"""Proxy-NCA in the form of HIER's code (Kim et al., CVPR 2023): Proxy-Anchor with the sums
    over the proxies.

    .. math:: \frac{1}{|X|}\sum_{x} \log\Big(1 + e^{-\alpha(s(x,p_x) - \delta)}\Big)
              + \frac{1}{|X|}\sum_{x} \log\Big(1 + \sum_{p \ne p_x} e^{\alpha(s(x,p) + \delta)}\Big)

    Args:
        num_classes, dim, margin, alpha: as for :class:`ProxyAnchorLoss`.
        similarity: a function that returns the similarities ``(B, K)`` of vectors ``(B, dim)`` and
            ``(K, dim)``; cosines by default.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        similarity: Similarity = cosines,
    ):
        super().__init__(num_classes, dim, margin, alpha)
        self.similarity = similarity

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        _, attract, repel = self._terms(x, labels, self.similarity, 1)
        return (attract.sum() + repel.sum()) / len(x)
