"""Convolution and batch normalisation of Poincare residual networks, for maps with a point of the
ball at each pixel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import PoincareBall
from hypvision.geometry.numerics import exact, log_beta, safe_sqrt, sinhc_sqrt, square_norm
from hypvision.io import Plain, at_least, between, one_of
from hypvision.nn.batch_statistics import HyperbolicBatchNorm
from hypvision.nn.checks import (
    check_features,
    check_manifold,
    check_sizes,
    integers,
)
from hypvision.nn.conv import box_sum
from hypvision.nn.functional import precise, space_square

from .linear import init_planes_


class PoincareConv2d(nn.Module):
    r"""Convolution of Poincare residual networks (van Spengler et al., ICCV 2023), computed exactly
    by one Euclidean convolution.

    The published layer joins the points of a patch by beta-concatenation (Shimizu et al., ICLR
    2021) and applies :class:`PoincareFullyConnected`. The joined point is :math:`\exp_0(U)` with
    the scaled logarithms ``U`` of the pixels, and its product with a normal is that of ``U`` times
    a function of :math:`|U|^2`: a convolution and a box sum, so the patches need not be unfolded.
    The padding consists of points at the origin.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation: as in ``nn.Conv2d``.
        bias: whether the hyperplanes have offsets.
        init: ``"normal"`` (variance ``1 / (2 n m)`` with ``n`` the size of a patch) or
            ``"isometric"``, see :class:`PoincareFullyConnected`. Radii shrink with both, since
            normals longer than 1/2 would make them explode: add a :class:`PoincareBatchNorm2d`
            after the layer, as the published networks do.

    Shapes:
        points ``(B, C, H, W)``, one a pixel, to ``(B, C', H', W')``; computed in float32 also under
        autocast.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        manifold: PoincareBall,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        init: str = "isometric",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, PoincareBall, manifold=manifold)
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        one_of(("isometric", "normal"), init=init)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.init = init
        self.kernel_size = integers(kernel_size, 2, "kernel_size", 1)
        self.stride = integers(stride, 2, "stride", 1)
        self.padding = integers(padding, 2, "padding", 0)
        self.dilation = integers(dilation, 2, "dilation", 1)
        self.manifold = manifold
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as ``init`` says, and set the offsets to 0."""
        init_planes_(self.weight.detach().view(self.out_channels, -1), self.init)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_channels, 1, 4)
        with exact(x.device):
            return self._convolve(precise(x)).to(x.dtype)

    def _convolve(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        weight = self.weight.to(x.dtype)
        root = c**0.5
        geometry = (self.stride, self.padding, self.dilation)
        patch = self.in_channels * math.prod(self.kernel_size)
        # The factor 2 gives tangent vectors the length of the distance from the origin, which is
        # twice their length as vectors of the ball.
        scale = 2 * math.exp(log_beta(patch) - log_beta(self.in_channels))
        tangent = self.manifold.logmap0(x.movedim(1, -1)).movedim(-1, 1) * scale
        square = box_sum(space_square(tangent, 1), self.kernel_size, *geometry) * c
        square = square.clamp(max=1600.0)  # sqrt of this, the radius, is at most 40
        length = safe_sqrt(square_norm(weight.flatten(1)))
        unit = weight / torch.where(length > 0, length, torch.ones_like(length)).view(-1, 1, 1, 1)
        along = F.conv2d(tangent, unit, None, *geometry) * (root * sinhc_sqrt(square))
        if self.bias is not None:
            angle = (2 * root * self.bias.to(x.dtype)).clamp(-40, 40).view(-1, 1, 1)
            along = along * torch.cosh(angle) - torch.cosh(safe_sqrt(square)) * torch.sinh(angle)
        limit = 40.0 - 0.5 * math.log(self.out_channels)
        space = torch.sinh((torch.asinh(along) * (2 * length).view(-1, 1, 1)).clamp(-limit, limit))
        y = space / (root * (1 + torch.sqrt(1 + space_square(space, 1))))
        return self.manifold.projx(y.movedim(1, -1)).movedim(-1, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"bias={self.bias is not None}"
        )


class _PoincareBatchNorm(HyperbolicBatchNorm):
    """Base class of batch normalisation of points of the ball, given as rows of a matrix."""

    def __init__(
        self,
        num_features: int,
        manifold: PoincareBall,
        eps: float = 1e-6,
        momentum: float = 0.1,
        mean: str = "midpoint",
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, PoincareBall, manifold=manifold)
        check_sizes(self, num_features=num_features)
        at_least(0, eps=eps)
        between(0, 1, momentum=momentum)
        one_of(("midpoint", "frechet"), mean=mean)
        factory: Plain = {"device": device, "dtype": dtype}
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.mean = mean
        self.manifold = manifold
        self.track_running_stats = track_running_stats
        self.weight = nn.Parameter(torch.ones((), **factory))
        self.bias = nn.Parameter(torch.zeros(num_features, **factory))
        if track_running_stats:
            self.register_buffer("running_mean", torch.zeros(num_features, **factory))
            self.register_buffer("running_var", torch.ones((), **factory))

    def _normalize(self, x: Tensor) -> Tensor:
        """Return the normalised points ``(N, n)``."""
        ball = self.manifold
        dtype = x.dtype
        x = precise(x)
        with exact(x.device):
            if self.takes_statistics(x.shape[0]) if self.training else not self.track_running_stats:
                mean = ball.midpoint(x) if self.mean == "midpoint" else ball.frechet_mean(x)
                var = ball.dist(mean.expand_as(x), x).square().mean()
                if self.training and self.track_running_stats:
                    self._update(mean.detach(), var.detach())
            elif self.track_running_stats:
                mean = ball.expmap0(self.running_mean.to(x.dtype))
                var = self.running_var.to(x.dtype)
            else:  # an empty batch without running statistics, whose result is empty, too
                mean = x.new_zeros(self.num_features)
                var = x.new_ones(())
            shift = ball.expmap0(self.bias.to(x.dtype)).expand_as(x)
            mean = mean.expand_as(x)
            tangent = ball.transp(mean, shift, ball.logmap(mean, x))
            gain = torch.sqrt(self.weight.to(x.dtype).clamp(min=0) / (var + self.eps))
            return ball.expmap(shift, tangent * gain).to(dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor) -> None:
        """Update the running variance linearly, and the running mean along the geodesic to the new
        mean; the latter is stored as a tangent vector at the origin."""
        ball = self.manifold
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
        last = ball.expmap0(self.running_mean.to(mean.dtype))
        self.running_mean.copy_(ball.logmap0(ball.geodesic(self.momentum, last, mean)))

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, mean={self.mean}"


class PoincareBatchNorm1d(_PoincareBatchNorm):
    r"""Batch normalisation on the ball (Lou et al., ICML 2020; van Spengler et al., ICCV 2023).

    .. math:: y = \exp_\beta\left(\sqrt{\tfrac{w}{v + \epsilon}}\,
              \mathrm{PT}_{\mu \to \beta} \log_\mu x\right)

    with the mean ``mu`` of all points, the mean squared distance ``v`` of the points from it and
    ``beta = exp_0(bias)``. The radii of the output do not depend on those of the input.

    Args:
        num_features: dimension ``n``.
        eps: added to the variance.
        momentum: share of the new batch's statistics in the running statistics.
        mean: ``"midpoint"``, the Moebius gyromidpoint, or ``"frechet"``, the Fréchet mean, which is
            found by iteration.
        track_running_stats: whether to keep running statistics for evaluation; the published layer
            does not, and uses the statistics of each batch.

    Attributes:
        weight: the number ``w``, initially 1.
        bias: tangent vector at the origin ``(n,)``, initially 0.
        running_mean: tangent vector at the origin ``(n,)``.
        running_var: the running variance, a number.

    Shapes:
        points ``(N, n)`` or ``(B, N, n)`` to the same. In training an empty batch leaves the
        running statistics as they are.

    Raises:
        HypvisionError: a batch in training has a single point.
    """

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, rank=2 if x.dim() == 2 else 3)
        return self._normalize(x.reshape(-1, self.num_features)).reshape(x.shape)


class PoincareBatchNorm2d(_PoincareBatchNorm):
    """Batch normalisation of maps ``(B, C, H, W)`` with a point of the ball at each pixel, over all
    pixels; see :class:`PoincareBatchNorm1d`."""

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, 1, 4)
        rows = x.movedim(1, -1)
        return (
            self._normalize(rows.reshape(-1, self.num_features)).reshape(rows.shape).movedim(-1, 1)
        )
