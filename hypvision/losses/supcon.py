"""The contrastive loss between views of classes that HIER's code calls supervised contrastive
loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hypvision.geometry.numerics import exact, precise, readable, widen
from hypvision.io import ArgumentError, one_of

from .proxy_anchor import Similarity, cosines


class SupConLoss(nn.Module):
    r"""Mean cross-entropy of identifying samples of the same class between two views of all classes
    (HIER, Kim et al., CVPR 2023).

    A batch holds :math:`V` samples of each of its :math:`N` classes, which make :math:`V` views
    :math:`x_1, ..., x_V` with one sample of each class. For every ordered pair of views, a sample
    of one view must identify the sample of its class among the :math:`N` of the other view and the
    other :math:`N - 1` of its own view:

    .. math:: \frac{1}{V^2}\sum_{i \ne j} \frac{1}{N}\sum_n
              -\log \frac{e^{s(x_{in}, x_{jn}) / \tau}}
              {\sum_m e^{s(x_{in}, x_{jm}) / \tau} + \sum_{m \ne n} e^{s(x_{in}, x_{im}) / \tau}}

    Args:
        temperature: the temperature :math:`\tau`.
        similarity: a function that returns the similarities ``(B, B)`` of vectors ``(B, dim)`` and
            ``(B, dim)``; cosines by default. The published one is the negative hyperbolic distance.
        reduction: ``"mean"`` divides the sum over pairs of views by :math:`V^2`, ``"sum"`` does
            not, as in Hyp-ViT (Ermolov et al., CVPR 2022), whose loss this is otherwise.

    Shapes:
        vectors ``(B, dim)`` and labels ``(B,)`` in any order, to a scalar. The first samples of
        all classes are the first view, the second samples the second view, and so on.

    Raises:
        ArgumentError: the classes of a batch have different numbers of samples, or only one. On a
            GPU, or compiled, the loss becomes NaN instead, since the host would have to wait.
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
        same = labels.unsqueeze(1) == labels
        counts = same.sum(1)
        uneven = (counts < 2) | (counts != counts[:1])
        # On a GPU the host would have to wait for this check, so there the loss becomes NaN.
        if not len(labels) or readable(labels) and bool(uneven.any()):
            raise ArgumentError(
                "SupConLoss needs batches with the same number of samples of every class, at least "
                f"2: got {sorted(set(counts.tolist()))}. Draw the classes first, then equally many "
                "images of each."
            )
        with exact(x.device):
            x = precise(x)
            # float64, because weights relative to that of the nearest sample may be exp(-100)
            s = widen(self.similarity(x, x) / self.temperature)
            itself = torch.eye(len(labels), dtype=torch.bool, device=x.device)
            pairs = same & ~itself
            view = same.tril(-1).sum(1)
            shared = view.unsqueeze(1) == view
            best = s.detach().masked_fill(itself, -torch.inf).amax(1, keepdim=True)
            weights = torch.exp((s - best).masked_fill(itself, -torch.inf))
            own = (weights * shared).sum(
                1, keepdim=True
            )  # sum over the other samples of the same view
            among = weights @ shared.to(s.dtype)  # sum over all samples of the other sample's view
            mass = (own + among).masked_fill(~pairs, 1.0)
            losses = (torch.log(mass) + best - s).masked_fill(~pairs, 0.0)
            views = counts[0]
            count = len(labels) * views if self.reduction == "mean" else len(labels) / views
            total = losses.sum() / count
            return total.masked_fill(uneven.any(), torch.nan).to(x.dtype)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
