"""Normalisation on the hyperboloid, of features that are space parts.

Inside of this module lengths are in units of the radius of curvature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz, ManifoldParameter, exportable
from hypvision.geometry.lorentz.points import CAPS
from hypvision.geometry.numerics import (
    Function,
    backward_of,
    clamped,
    exact,
    has_float64,
    needs_grad,
    plain,
)
from hypvision.io import Plain, at_least, between

from .batch_statistics import HyperbolicBatchNorm
from .checks import (
    check_eps,
    check_features,
    check_manifold,
    check_rescaling,
    check_sizes,
)
from .functional import NEAR, of_kernels, on_gpu, rescaled


class _Options(NamedTuple):
    """The constants of a batch norm: numbers and switches that are not learned."""

    eps: float
    gyro: bool
    joint: bool
    slope: float | None
    limit: float | None
    longest: float  # the length to which the exponential map cuts vectors


# The running mean and variance of a batch norm in evaluation; None in training.
_Running = tuple[Tensor, Tensor] | None


def _centroid(time: Tensor, space: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the centroid, time ``(...)`` and space part ``(..., C)``, of ``count`` points for
    c = 1, from the sums of their times and of their space parts."""
    square = time * time - (space * space).sum(-1)
    # A mean of points has a square of at least 1; for distant points rounding may bring it below.
    factor = torch.rsqrt(clamped(square, count * count))
    return time * factor, space * factor.unsqueeze(-1)


def _from_tangent(tangent: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """Return the exponential map at the origin of one vector ``(C,)``: a time and a space part
    ``(C,)``."""
    length = torch.linalg.vector_norm(tangent)
    angle = clamped(length, high=longest)
    return exportable.cosh(angle), tangent * (exportable.sinh(angle) / clamped(length, 1e-30))


def _batch_mean(time: Tensor, space: Tensor, pixels: int, joint: bool) -> Tensor:
    """Return the space part ``(C,)`` of the mean of a batch, from the sums over the ``pixels`` of
    its images: time ``(B,)``, space ``(B, C)``; ``joint``: the centroid of all pixels, not of the
    images' centroids."""
    if not joint:
        time, space = _centroid(time, space, pixels)
        pixels = 1
    return _centroid(time.sum(), space.sum(0), time.shape[0] * pixels)[1]


def _sums(x: Tensor, running: _Running) -> Tensor:
    """Return the sums ``(B, C)`` of the space parts ``(B, C, N)`` over the pixels of each image; 0
    in evaluation, where they are not used."""
    return x.sum(2) if running is None else x.new_zeros(x.shape[:2])


def _basis(
    square: Tensor,
    sums: Tensor,
    beta: Tensor,
    c: Tensor,
    running: _Running,
    options: _Options,
    dtype: torch.dtype,
) -> Tensor:
    """Return the space parts ``(2, C)`` of the batch's mean and of beta, in units of the radius of
    curvature.

    Args:
        square: squared norms of the space parts of all pixels, ``(B, 1, N)``.
        sums: the result of :func:`_sums`.
        beta, c, running, options: arguments of :func:`batch_norm`.
        dtype: dtype of the map, and of the result.
    """
    root = torch.sqrt(c)
    if running is not None:
        _, mean = _from_tangent(running[0] * root, options.longest)
    else:
        time = torch.sqrt(1 + c * square).sum((1, 2))
        mean = _batch_mean(time, sums * root, square.shape[2], options.joint)
    # The mean is rounded to the map's dtype here: all products with the map must use the same
    # digits of it, or points would not lie around it.
    return torch.stack([mean, beta[1:] * root]).to(dtype)


def _numbers(
    square: Tensor,
    x_m: Tensor,
    x_b: Tensor,
    basis: Tensor,
    gamma: Tensor,
    c: Tensor,
    running: _Running,
    options: _Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what pixels are multiplied by, the multiples of mean and beta that are added to them,
    each ``(B, 1, N)``, and the variance.

    In units of the radius of curvature: ``m`` and ``b`` are mean and beta, ``t`` the time of a
    pixel, ``r`` its distance from the mean, ``h = cosh(r) - 1``, and ``s`` the result of scaling
    ``r``. The inverse boost by the mean, the scaling and the boost by beta leave
    ``f x + e_m m + e_b b``, with ``f = sinh(s) / sinh(r)``, ``e_m = -f (t + 1 + h) / (m_t + 1)``
    and ``e_b = cosh(s) + (f x.b + e_m m.b) / (b_t + 1)``.

    Args:
        square: squared norms of the space parts, ``(B, 1, N)``.
        x_m, x_b: inner products of the pixels with mean and beta, ``(B, 1, N)``.
        basis: the result of :func:`_basis`.
        gamma, c, running, options: arguments of :func:`batch_norm`.
    """
    root = torch.sqrt(c)
    gram = (basis.unsqueeze(1) * basis).sum(2)
    m_time, b_time = torch.sqrt(1 + gram.diagonal()).unbind()
    x_m = x_m * root
    x_b = x_b * root
    t = torch.sqrt(1 + c * square)
    h = clamped(m_time * t - x_m - 1, NEAR[square.dtype])
    sinh = torch.sqrt(h * (h + 2))
    r = exportable.asinh(sinh)
    if options.gyro:
        var = (r * r).mean() / c if running is None else running[1]
        gain = torch.exp(gamma) / torch.sqrt(var + options.eps)
    else:
        var = r.mean() / root if running is None else running[1]
        gain = gamma / (var + options.eps)
    s = r * gain
    if options.slope is not None:
        s = rescaled(s, c, options.slope, options.limit)
    s = clamped(s, high=options.longest)
    f = exportable.sinh(s) / sinh
    e_m = -f * ((t + 1 + h) / (m_time + 1))
    e_b = exportable.cosh(s) + (f * x_b + e_m * gram[0, 1]) / (b_time + 1)
    return f, e_m / root, e_b / root, var


def batch_norm(
    x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: _Running, options: _Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch norm of maps, ``(B, C, N)``, and the mean ``(C,)`` and the variance of the
    batch, without gradients.

    The numbers of a pixel are computed in float64, so that near points need no formulas of their
    own.

    Args:
        x: space parts ``(B, C, N)``, float32 or float64.
        beta, gamma: parameters, float64.
        c: curvature, float64.
        running: the running mean as a tangent vector at the origin and the running variance,
            float64; None in training.
        options: constants of the layer.
    """
    square = (x * x).sum(1, keepdim=True).to(c.dtype)
    basis = _basis(square, _sums(x, running).to(c.dtype), beta, c, running, options, x.dtype)
    # The rows are expanded, because a product of two and three dimensions would copy the map.
    rows = basis.expand(x.shape[0], -1, -1)
    x_m, x_b = torch.bmm(rows, x).to(c.dtype).split(1, 1)
    *numbers, var = _numbers(square, x_m, x_b, basis.to(c.dtype), gamma, c, running, options)
    f, *ends = (number.to(x.dtype) for number in numbers)
    out = torch.baddbmm(x * f, rows.transpose(1, 2), torch.cat(ends, 1))
    return out, basis[0].detach(), var.detach()


class _BatchNorm(Function):
    """Compute :func:`batch_norm` on a CPU, where allocating a map costs more than computing what is
    written into it.

    Forward and backward allocate one map each; the backward computes the numbers of the pixels once
    more to differentiate them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        beta: Tensor,
        gamma: Tensor,
        c: Tensor,
        running: _Running,
        options: _Options,
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.mul(x, x)
        square = out.sum(1, keepdim=True)
        sums = _sums(x, running)
        wide = c.dtype
        basis = _basis(square.to(wide), sums.to(wide), beta, c, running, options, x.dtype)
        products = torch.matmul(basis, x)
        x_m, x_b = products.to(wide).split(1, 1)
        factor, *ends, var = _numbers(
            square.to(wide), x_m, x_b, basis.to(wide), gamma, c, running, options
        )
        torch.mul(x, factor.to(x.dtype), out=out)
        _add_outer_(out, basis, [end.to(x.dtype) for end in ends])
        ctx.save_for_backward(x, square, sums, products, beta, gamma, c)
        ctx.running = running
        ctx.options = options
        mean = basis[0]
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, square, sums, products, *parameters = ctx.saved_tensors
        running = ctx.running
        options = ctx.options
        if torch.is_grad_enabled():

            def plainly(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor) -> Tensor:
                return batch_norm(x, beta, gamma, c, running, options)[0]

            return (
                *backward_of(plainly, [x, *parameters], ctx.needs_input_grad[:4], grad),
                None,
                None,
            )
        wide = parameters[0].dtype
        leaves = [
            leaf.to(wide).detach().requires_grad_()
            for leaf in (square, sums, products, *parameters)
        ]
        square, sums, products, beta, gamma, c = leaves
        with torch.enable_grad():
            basis = _basis(square, sums, beta, c, running, options, x.dtype)
            fixed = basis.detach().to(wide).requires_grad_()
            x_m, x_b = products.split(1, 1)
            numbers = _numbers(square, x_m, x_b, fixed, gamma, c, running, options)
            factor, *ends = numbers[:3]
        out = grad * x
        by_ends = torch.matmul(basis.detach(), grad).to(wide).split(1, 1)
        by_numbers = out.sum(1, keepdim=True).to(wide), *by_ends
        by_square, by_products, by_basis, by_gamma, by_c = torch.autograd.grad(
            (factor, *ends), (square, products, fixed, gamma, c), by_numbers
        )
        by_products = by_products.to(x.dtype)
        rows = torch.cat([end.detach() for end in ends], 1).to(x.dtype)
        by_rows = torch.bmm(rows, grad.transpose(1, 2)).sum(0)
        by_rows += torch.bmm(by_products, x.transpose(1, 2)).sum(0)
        more_by_square, by_sums, by_beta, more_by_c = torch.autograd.grad(
            basis, (square, sums, beta, c), by_basis.to(x.dtype) + by_rows, materialize_grads=True
        )
        bias = by_sums.to(x.dtype).unsqueeze(2)
        torch.addcmul(bias, grad, factor.detach().to(x.dtype), out=out)
        _add_outer_(out, basis.detach(), by_products.split(1, 1))
        out.addcmul_(x, by_square.add_(more_by_square).to(x.dtype), value=2)
        return out, by_beta, by_gamma, by_c + more_by_c, None, None


def _add_outer_(out: Tensor, basis: Tensor, ends: Sequence[Tensor]) -> None:
    """Add two products of rank one to a map in place, which is twice as fast as one matrix
    product."""
    for row, end in zip(basis, ends):
        out.addcmul_(row.unsqueeze(1), end)


class _Fused(Function):
    """Compute :func:`batch_norm` on a GPU by Triton kernels, which also update the running
    statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: tuple[Tensor, Tensor],
        momentum: float | None, options: _Options,
    ) -> Tensor:  # fmt: skip
        from . import kernels

        most, constants = of_kernels(c, options.slope, options.limit)
        ctx.constants = dict(EPS=options.eps, LONGEST=options.longest, **constants)
        ctx.options = options
        x = x.contiguous()
        with torch.cuda.device_of(x):
            out, *kept = kernels.forward(x, beta, gamma, c, most, running, momentum, ctx.constants)
        ctx.save_for_backward(x, beta, gamma, c, most, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from . import kernels

        x, beta, gamma, c, most, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plainly(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor) -> Tensor:
                return batch_norm(x, beta.to(c.dtype), gamma.to(c.dtype), c, None, ctx.options)[0]

            return (
                *backward_of(plainly, [x, beta, gamma, c], ctx.needs_input_grad[:4], grad),
                None,
                None,
                None,
            )
        with torch.cuda.device_of(x):
            found = kernels.backward(
                grad.contiguous(), x, beta, gamma, c, most, kept, ctx.constants
            )
        return *found, None, None, None


class _LorentzBatchNorm(HyperbolicBatchNorm):
    """The base of batch norms: move the mean to the origin, scale the radii, move the origin to
    ``beta``."""

    manifold_parameters = ("beta",)
    gyro = False
    joint = False
    exp_limit: float | None = 10.0

    def __init__(
        self,
        num_features: int,
        manifold: Lorentz,
        eps: float = 1e-5,
        momentum: float = 0.1,
        slope: float | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        limit: float | None = None,
        exp_limit: float | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, num_features=num_features)
        check_rescaling(self, slope, limit, exp_limit=exp_limit)
        at_least(0, eps=eps)
        between(0, 1, momentum=momentum)
        if exp_limit is not None:
            self.exp_limit = exp_limit
        factory: Plain = {"device": device, "dtype": dtype}
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.slope = slope
        self.limit = limit
        self.manifold = manifold
        with torch.no_grad():
            origin = manifold.origin(num_features, **factory)
        self.beta = ManifoldParameter(origin, manifold)
        self.gamma = nn.Parameter(torch.full((1,), 0.0 if self.gyro else 1.0, **factory))
        self.register_buffer("running_mean", torch.zeros(num_features, **factory))
        self.register_buffer("running_var", torch.ones(1, **factory))

    def _normalize(self, x: Tensor) -> Tensor:
        """Return the batch norm of space parts ``(B, C, N)``."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        wide = torch.float64 if has_float64(x) else torch.float32
        # An empty batch has no statistics, so it is normalised by the running ones.
        batch = self.training and self.takes_statistics(x.shape[0] * x.shape[2])
        options = self._options(dtype)
        with exact(x.device):
            c = torch.as_tensor(self.manifold.c, dtype=wide, device=x.device)
            if self._fused(x, c, batch):
                momentum = self.momentum if batch else None
                statistics = self.running_mean, self.running_var
                fused: Tensor = _Fused.apply(
                    x.to(dtype), self.beta, self.gamma, c, statistics, momentum, options
                )
                return fused.to(x.dtype)
            running = None if batch else (self.running_mean.to(wide), self.running_var.to(wide))
            function = _BatchNorm.apply if x.device.type == "cpu" and not plain(x) else batch_norm
            out, mean, var = function(
                x.to(dtype), self.beta.to(wide), self.gamma.to(wide), c, running, options
            )
            if batch:
                self._update(mean, var, c.detach())
        return out.to(x.dtype)

    def _fused(self, x: Tensor, c: Tensor, batch: bool) -> bool:
        """Return whether Triton kernels compute the batch norm: of float32 maps, with the mean and
        variance of Bdeir et al., where Triton is installed.

        Rare cases are left to the plain form: float64, the gyrogroup's statistics, gradients in
        evaluation, and maps of more numbers, or sums of pixels, than 32 bits count.
        """
        if x.dtype == torch.float64 or self.gyro or self.joint or not on_gpu(x):
            return False  # before any look at sizes, which a compiler may not know
        numbers = max(x.shape[1], 4) * x.shape[0] * x.shape[2]
        return 0 < numbers < 2**31 and (batch or not needs_grad(x, c, self.beta, self.gamma))

    def _options(self, dtype: torch.dtype) -> _Options:
        """Return the constants of the layer for a dtype; vectors are cut so that the square of
        their cosh is finite."""
        longest = CAPS[dtype] if self.exp_limit is None else min(self.exp_limit, CAPS[dtype])
        return _Options(self.eps, self.gyro, self.joint, self.slope, self.limit, longest)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, c: Tensor) -> None:
        """Update the running variance by linear interpolation, and the running mean to a centroid
        of old and new mean, kept as a tangent vector at the origin."""
        mean = mean.to(c.dtype)
        root = torch.sqrt(c)
        momentum = self.momentum
        self.running_var.lerp_(var.to(self.running_var.dtype), momentum)
        longest = CAPS[torch.promote_types(self.running_mean.dtype, torch.float32)]
        old_time, old = _from_tangent(self.running_mean.to(mean.dtype) * root, longest)
        time = torch.lerp(old_time, torch.sqrt(1 + (mean * mean).sum()), momentum)
        space = torch.lerp(old, mean, momentum)
        size = torch.linalg.vector_norm(space)
        # The centroid has the direction of the sum.
        length = size / torch.sqrt((time * time - size * size).clamp(min=1.0))
        self.running_mean.copy_(space * (torch.asinh(length) / (size.clamp(min=1e-30) * root)))

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, slope={self.slope}"


class LorentzBatchNorm2d(_LorentzBatchNorm):
    r"""Lorentz batch normalisation of maps (Bdeir et al., ICLR 2024), in closed form.

    The mean is the centroid over the images of the centroids over their pixels, the variance the
    mean distance from the mean. The inverse boost by the mean moves points so that the mean comes
    to lie at the origin, their radii are multiplied by ``gamma / (var + eps)``, and the boost by
    ``beta`` moves them on. For every pixel that is a factor and two terms of rank one, where the
    published chain of logarithm, transports and exponential map writes four maps.

    Args:
        num_features: number of channels C.
        manifold: the hyperboloid of the points.
        eps: number that is added to the variance.
        momentum: weight of the new batch in the running statistics.
        slope: if given, the radii pass a maximum-distance rescaling before the move to ``beta``
            ("+" models, NeurIPS 2025), see :func:`hypvision.geometry.lorentz.rescale`.
        limit: the radius that no point exceeds after the rescaling, which needs ``slope``; by
            default :func:`~hypvision.geometry.lorentz.max_distance`.
        exp_limit: length to which the exponential map at ``beta`` cuts longer vectors, in units of
            the radius of curvature; by default 10, as in the published code. The code of the "+"
            models has 100. More than 40 in float32 (350 in float64) counts as 40 (350), because
            squares must not overflow.

    Attributes:
        beta: the point ``(C + 1,)`` to which the mean is moved, a
            :class:`~hypvision.geometry.ManifoldParameter` that starts at the origin.
        gamma: the factor ``(1,)`` of the radii, at first 1.
        running_mean: the running mean, a tangent vector at the origin ``(C,)``.
        running_var: the running variance ``(1,)``.

    Shapes:
        space parts ``(B, C, H, W)`` to space parts of the same shape, computed in float32 also
        under autocast. In training an empty batch leaves the running statistics unchanged.

    Raises:
        HypvisionError: in training, a batch has a single pixel.
    """

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, 1, 4)
        return self._normalize(x.flatten(2)).reshape(x.shape)


class LorentzBatchNorm1d(_LorentzBatchNorm):
    """Lorentz batch normalisation of points ``(B, C)`` or tokens ``(B, N, C)``; see
    :class:`LorentzBatchNorm2d`."""

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, rank=2 if x.dim() == 2 else 3)
        if x.dim() == 2:
            return self._normalize(x.unsqueeze(2)).squeeze(2)
        return self._normalize(x.transpose(1, 2)).transpose(1, 2)


class LorentzLayerNorm(nn.LayerNorm):
    """Layer normalisation of the space part ``(..., n)``; the time is computed from the result
    (Hypformer, KDD 2024). It needs no manifold; the arguments are those of
    :class:`torch.nn.LayerNorm`."""

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        check_eps(self, eps)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)


class LorentzRMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation of the space part ``(..., n)``; the time is computed from the
    result (HELM, 2025). It needs no manifold; further arguments are those of
    :class:`torch.nn.RMSNorm`."""

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float | None = 1e-4,
        **kwargs: Any,
    ):
        check_eps(self, eps)
        super().__init__(normalized_shape, eps=eps, **kwargs)
