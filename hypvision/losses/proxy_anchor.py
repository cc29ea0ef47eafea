"""Proxy-Anchor, the metric loss of the HIER recipes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry.numerics import exact

__all__ = ["ProxyAnchorLoss"]


class ProxyAnchorLoss(nn.Module):
    r"""Proxy-Anchor loss (Kim et al., CVPR 2020, eq. 4) on the directions of embeddings.

    .. math:: \frac{1}{|P^+|}\sum_{p \in P^+} \log\Big(1 + \sum_{x \in X_p^+} e^{-\alpha(s(x,p) - \delta)}\Big)
              + \frac{1}{|P|}\sum_{p} \log\Big(1 + \sum_{x \in X_p^-} e^{\alpha(s(x,p) + \delta)}\Big)

    with :math:`s` the cosine, :math:`P^+` the classes in the batch.

    Args:
        num_classes: training classes, one proxy each.
        dim: dimension of the embeddings.
        margin: :math:`\delta`.
        alpha: :math:`\alpha`.

    Shapes:
        vectors ``(B, dim)`` of any length and labels ``(B,)``, to a scalar.

    Raises:
        ValueError: a label that is no class.
    """

    def __init__(self, num_classes: int, dim: int, margin: float = 0.1, alpha: float = 32.0):
        super().__init__()
        self.margin, self.alpha = margin, alpha
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if labels.numel() and not labels.is_cuda and int(labels.max()) >= len(self.proxies):
            raise ValueError(f"There are {len(self.proxies)} class proxies, but a label is {int(labels.max())}.")
        with exact(x.device):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            cosine = F.linear(F.normalize(x), F.normalize(self.proxies.to(x.dtype)))
            own = F.one_hot(labels, len(self.proxies)).bool()
            # log(1 + sum(exp(z))) is a log-sum-exp with one more 0
            positive = (-self.alpha * (cosine - self.margin)).masked_fill(~own, -torch.inf)
            negative = (self.alpha * (cosine + self.margin)).masked_fill(own, -torch.inf)
            zero = cosine.new_zeros(1, cosine.shape[1])
            attract, repel = (torch.logsumexp(torch.cat([zero, z]), 0) for z in (positive, negative))
            return attract.sum() / own.any(0).sum() + repel.sum() / len(self.proxies)

    def extra_repr(self) -> str:
        return f"num_classes={len(self.proxies)}, margin={self.margin}, alpha={self.alpha}"
