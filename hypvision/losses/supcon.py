"""The contrastive loss between views of classes, which the code of HIER calls supervised
contrastive loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hypvision.geometry.numerics import exact
from hypvision.io.checks import one_of
from hypvision.io.errors import ArgumentError

from .proxy_anchor import Similarity, cosines


class SupConLoss(nn.Module):
    r"""Cross-entropies of one view of every class with another (HIER, Kim et al., CVPR 2023).

    A batch holds :math:`V` samples of each of its :math:`N` classes, which make :math:`V` views
    :math:`x_1, ..., x_V`. For every ordered pair of views, a sample of one must identify the sample
    of its class among the :math:`N` of the other view and the other :math:`N - 1` of its own:

    .. math:: \frac{1}{V^2}\sum_{i \ne j} \frac{1}{N}\sum_n
              -\log \frac{e^{s(x_{in}, x_{jn}) / \tau}}
              {\sum_m e^{s(x_{in}, x_{jm}) / \tau} + \sum_{m \ne n} e^{s(x_{in}, x_{im}) / \tau}}

    Args:
        temperature: :math:`\tau`.
        similarity: function of vectors ``(B, dim)`` and ``(B, dim)`` that gives ``(B, B)``; cosines
            by default. The published one is the negative hyperbolic distance.
        reduction: ``"mean"`` divides the sum over pairs of views by :math:`V^2`, ``"sum"`` does
            not, as in Hyp-ViT (Ermolov et al., CVPR 2022), whose loss this is otherwise.

    Shapes:
        vectors ``(B, dim)`` and labels ``(B,)`` in any order, to a scalar. Samples of a class are
        views in the order in which they come.
    """

    def __init__(
        self,
        temperature: float = 0.2,
        similarity: Similarity = cosines,
        reduction: str = "mean",
    ):
        super().__init__()
        one_of(("mean", "sum"), reduction=reduction)
        self.reduction = reduction
        self.temperature = temperature
        self.similarity = similarity

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        classes, counts = torch.unique(labels, return_counts=True)
        count = len(classes)
        views = int(counts.max()) if len(counts) else 0
        if views < 2 or bool((counts != views).any()):
            raise ArgumentError(
                "SupConLoss needs batches with the same number of samples of every class, at least "
                f"2: got {sorted(set(counts.tolist()))}. Sample classes first, then as many images "
                "of each."
            )
        with exact(x.device):
            x = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)[
                labels.argsort(stable=True)
            ]
            s = self.similarity(x, x) / self.temperature
            s = s.view(count, views, count, views).permute(1, 3, 0, 2)  # (V, V, N, N)
            pairs = torch.eye(views, dtype=torch.bool, device=x.device)
            among = s.logsumexp(-1)  # (V, V, N): all samples of each view
            same = torch.eye(count, dtype=torch.bool, device=x.device)
            # (V, N): other samples in the same view
            own = s[pairs].masked_fill(same, -torch.inf).logsumexp(-1)
            loss = torch.logaddexp(among, own.unsqueeze(1)) - s.diagonal(dim1=-2, dim2=-1)
            total = loss.mean(-1)[~pairs].sum()
            return total / views**2 if self.reduction == "mean" else total

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
