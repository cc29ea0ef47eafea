"""Normalisation on the hyperboloid, over space-only features."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.geometry.lorentz.means import centroid_space
from hypvision.geometry.numerics import backward_of, distance_from_square, exact, plain, squash_factor

from .checks import check_features, check_manifold, check_number, check_sizes
from .functional import rescale_limit

__all__ = ["LorentzBatchNorm1d", "LorentzBatchNorm2d", "LorentzLayerNorm", "LorentzRMSNorm"]


# Everything below is in units of the radius of curvature. Points are pairs of a time and a space part.

# Longest vector whose cosh has a square in float32 (float64): the bound where no other is asked for.
_CAP = {torch.float32: 40.0, torch.float64: 350.0}


def _longest(limit: float | None, dtype: torch.dtype) -> float:
    """Length at which the exponential map cuts vectors, in units of the radius of curvature."""
    return _CAP[dtype] if limit is None else min(limit, _CAP[dtype])


def _unit(time: Tensor, space: Tensor) -> tuple[Tensor, Tensor]:
    """The centroid for a mean of points given as time ``(...)`` and space ``(..., C)``."""
    space = centroid_space(time.unsqueeze(-1), space, 1.0)
    return torch.sqrt(1 + (space * space).sum(-1)), space


def _radial_factor(q: Tensor, g: Tensor, longest: float) -> Tensor:
    """``sinh(min(g r, longest)) / sinh(r)`` for the squared chord ``q = 4 sinh^2(r / 2)``."""
    small = q * (g * g).clamp(min=1) < 1e-2
    g2 = g * g
    series = 1 + q * ((g2 - 1) / 6) * (1 + q * ((g2 - 4) / 20) * (1 + q * ((g2 - 9) / 42)))
    q = torch.where(small, torch.ones_like(q), q)
    ratio = (distance_from_square(q) * g).clamp(max=longest).sinh() / torch.sqrt(q + q * q / 4)
    return torch.where(small, g * series, ratio)


def _ends(
    q: Tensor,
    products: Tensor,
    mean: tuple,
    beta: tuple,
    scale: Callable,
    squared: bool,
    var: Tensor | None,
    longest: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Boost by -mean, multiply the radii, boost by beta: a factor of the point and two terms of rank one.

    Args:
        q: squared norms of the points, ``(B, 1, N)``.
        products: their inner products with the mean and with beta, ``(B, 2, N)``.
        mean, beta: time ``()`` and space ``(C,)``.
        scale: function of the variance and the squared radii that gives the factor of the radii.
        squared: whether the variance is the mean of squared radii instead of radii.
        var: variance to use; that of the points if None.
        longest: largest radius after the multiplication.

    Returns:
        The factor ``(B, 1, N)``, the coefficients of mean and beta ``(B, 2, N)``, and the variance.
    """
    (mean_time, mean_space), (beta_time, beta_space) = mean, beta
    along_mean, along_beta = products[:, :1], products[:, 1:]
    time = torch.sqrt(1 + q)
    mean_square = (mean_space * mean_space).sum()
    gap = (q - mean_square) / (time + mean_time)
    chord = (q + mean_square - 2 * along_mean - gap * gap).clamp(min=0)
    radius = distance_from_square(chord)
    square = radius * radius
    if var is None:
        var = square.mean() if squared else radius.mean()
    gain = scale(var, square)
    factor = _radial_factor(chord, gain, longest)
    arrived_time = torch.sqrt(1 + chord * (1 + chord / 4) * factor * factor)
    c1 = (time + 1 + chord / 2) / (mean_time + 1) * factor
    final_time = beta_time * arrived_time + factor * along_beta - c1 * (mean_space * beta_space).sum()
    c2 = (arrived_time + final_time) / (beta_time + 1)
    return factor, torch.cat([-c1, c2], 1), var


class _Options(NamedTuple):
    """Constants of a layer."""

    eps: float
    gyro: bool
    joint: bool
    slope: float | None
    limit: float | None = None
    exp_limit: float | None = None


def _scale(gamma: Tensor, c: Tensor, options: _Options) -> Callable[[Tensor, Tensor], Tensor]:
    """Factor of the radii from the variance and the squared radii, both in units of the radius of curvature."""

    def scale(var: Tensor, square: Tensor) -> Tensor:
        if options.gyro:
            gain = torch.exp(gamma) / torch.sqrt(var / c + options.eps)
        else:
            gain = gamma / (var / torch.sqrt(c) + options.eps)
        if options.slope is None:
            return gain
        limit = rescale_limit(c, options.limit)
        return gain * squash_factor(square * (gain * gain) / c, limit, options.slope)

    return scale


def _from_tangent(tangent: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """Exponential map at the origin of one vector ``(C,)``."""
    length = torch.linalg.vector_norm(tangent)
    size = length.clamp(max=longest)
    return torch.cosh(size), tangent * (torch.sinh(size) / length.clamp(min=1e-30))


def _mean_point(average: Tensor, time: Tensor, running: Tensor | None, c: Tensor, options: _Options):
    """Centroid for the means of the images ``(B, C)`` and of their times ``(B,)``, or the point of the running mean."""
    root = torch.sqrt(c)
    if running is not None:
        return _from_tangent(running * root, _longest(options.exp_limit, running.dtype))
    if options.joint:
        return _unit(time.mean(), average.mean(0) * root)
    return _unit(*(part.mean(0) for part in _unit(time, average * root)))


class _BatchNorm(Function):
    """The layer with one map read and one written each way; the scalars of the pixels are differentiated by hand.

    In units of the radius of curvature: ``m`` and ``b`` are the space parts of mean and beta, ``t = sqrt(1 + q)`` the
    time of a pixel, ``chord`` its squared chord from the mean, ``r`` the distance, ``s`` the result of scaling it, and
    ``f = sinh(s) / sinh(r)``. The inverse boost, the scaling and the boost leave ``f x - c1 m + c2 b`` with ``c1 = f (t
    + 1 + chord / 2) / (m_t + 1)`` and ``c2 = cosh(s) + (f x.b - c1 m.b) / (b_t + 1)``.
    """

    @staticmethod
    def forward(ctx, x, beta, gamma, c, running, options):
        root = torch.sqrt(c)
        # New memory is what costs most here (the system hands it out page by page): one map, used twice.
        out = torch.mul(x, x)
        q = out.sum(1, keepdim=True).mul_(c)
        t = torch.sqrt(q + 1)
        leaves = (c.detach().requires_grad_(), x.mean(2).requires_grad_(), t.mean((1, 2)).requires_grad_())
        with torch.enable_grad():
            point = _mean_point(leaves[1], leaves[2], None if running is None else running[0], leaves[0], options)
        mt, m = (part.detach() for part in point)
        b = beta[1:] * root
        bt = torch.sqrt(1 + torch.dot(b, b))
        basis = torch.stack([m, b])
        products = torch.bmm(basis.expand(x.shape[0], *basis.shape), x).mul_(root)
        along_mean, along_beta = products[:, :1], products[:, 1:]
        square = torch.dot(m, m)
        gap = (q - square) / (t + mt)
        chord = torch.addcmul(q + square, gap, gap, value=-1).sub_(along_mean, alpha=2).clamp_(min=0)
        r = distance_from_square(chord).clamp_(min=1e-15)
        sinh = torch.addcmul(chord, chord, chord, value=0.25).clamp_(min=1e-30).sqrt_()
        if options.gyro:
            var = torch.linalg.vector_norm(r).square() / r.numel() / c if running is None else running[1]
            gain = torch.exp(gamma) / torch.sqrt(var + options.eps)
        else:
            var = r.mean() / root if running is None else running[1]
            gain = gamma / (var + options.eps)
        s = r * gain
        slope = bend = growth = None
        if options.slope is not None:
            # s = kappa tanh(bend r g) / bend
            kappa = math.atanh(0.99) / options.slope
            bend = kappa / rescale_limit(c, options.limit) / root
            slope = s.mul_(bend).tanh_()
            s = slope * (kappa / bend)
        longest = _longest(options.exp_limit, s.dtype)
        # On a CPU, where looking costs nothing, the rare case alone pays for the limit.
        if s.device.type != "cpu" or (s > longest).any():
            growth = (s <= longest).to(s.dtype)  # beyond, nothing changes with s
            s = s.clamp(max=longest)
        f = torch.sinh(s).div_(sinh)
        cosh = torch.cosh(s)
        ratio = (t + 1).add_(chord, alpha=0.5).div_(mt + 1)
        c1 = ratio * f
        c2 = torch.addcmul(c1 * -torch.dot(m, b), f, along_beta).div_(bt + 1).add_(cosh)
        torch.mul(x, f, out=out)
        _add_outer_(out, basis / root, c1.neg(), c2)
        ctx.save_for_backward(
            x, gamma, c, mt, m, b, bt, q, t, products, gap, chord, r, sinh, gain, slope, bend, growth, s, f, cosh,
            ratio, c1, c2, var, beta,
        )  # fmt: skip
        ctx.point, ctx.leaves, ctx.running, ctx.options = point, leaves, running, options
        ctx.mark_non_differentiable(m, var)
        return out, m, var

    @staticmethod
    def backward(ctx, grad, *_):
        if torch.is_grad_enabled():
            x, gamma, c = ctx.saved_tensors[:3]
            inputs, needed = [x, ctx.saved_tensors[-1], gamma, c], ctx.needs_input_grad[:4]
            function = lambda *given: _composite(*given, ctx.running, ctx.options)[0]  # noqa: E731
            return *backward_of(function, inputs, needed, grad), None, None
        (
            x, gamma, c, mt, m, b, bt, q, t, products, gap, chord, r, sinh, gain, bent, bend, growth, _s, f, cosh,
            ratio, c1, c2, var, _beta,
        ) = ctx.saved_tensors  # fmt: skip
        options, batch = ctx.options, ctx.running is None
        root, along_beta = torch.sqrt(c), products[:, 1:]
        basis = torch.stack([m, b])
        bases = basis.expand(x.shape[0], *basis.shape)
        buffer = grad * x
        g_f = buffer.sum(1, keepdim=True)
        ends = torch.bmm(bases, grad).div_(root)
        g_1, g_2 = ends[:, :1].neg(), ends[:, 1:]
        g_c = -((g_1 * c1).sum() + (g_2 * c2).sum()) / (2 * c)

        # c2, then c1 = ratio f
        share = g_2 / (bt + 1)
        g_cross = -torch.dot(share.flatten(), c1.flatten())
        g_bt = -torch.dot(share.flatten(), (c2 - cosh).flatten())
        g_f.addcmul_(share, along_beta)
        g_beta = share * f
        g_1 = g_1.sub_(share * torch.dot(m, b))
        g_f.addcmul_(g_1, ratio)
        g_ratio = g_1.mul_(f).div_(mt + 1)
        g_mt = -torch.dot(g_ratio.flatten(), ratio.flatten())

        # cosh(s) and f = sinh(s) / sinh(r) by s, at fixed r; then by the chord
        g_s = torch.mul(g_2, f).mul_(sinh).addcmul_(g_f, cosh / sinh)
        if growth is not None:
            g_s = g_s * growth
        if bend is None:
            local = gain  # ds/dr
            first, bow = gain, 0.0  # its value at 0; s = first r (1 - bow r^2 + ...)
        else:
            kappa = math.atanh(0.99) / options.slope
            flat = 1 - bent * bent
            local, first, bow = flat * (kappa * gain), kappa * gain, (bend * gain) ** 2 / 3
            # s by 1 / bend: tanh - (bend r g) (1 - tanh^2), and bend falls with sqrt(c)
            lean = bent - (r * flat) * (bend * gain)
            g_c = g_c + torch.dot(g_s.flatten(), lean.flatten()) * (kappa / bend) / (2 * c)
        if growth is not None:
            local = local * growth
        scale = first * first
        alpha = (scale - 1) / 6 - bow
        gamma2 = bow * bow * 1.2 - bow * scale / 2 + scale * scale / 120 - (scale / 6 - bow) / 6 + 7 / 360 - alpha / 12
        series = torch.mul(chord, 2 * first * gamma2).add_(first * alpha)
        steep = torch.addcmul(local * cosh, f, chord * 0.5 + 1, value=-1).div_(sinh * sinh).mul_(0.5)
        steep = torch.where(chord * scale.clamp(min=1) < 1e-2, series, steep)  # there the difference cancels
        g_chord = torch.mul(g_f, steep).addcmul_(g_2 * local, f, value=0.5).add_(g_ratio, alpha=0.5)

        # the gain, by variance and gamma
        by_gain = r if bend is None else r * (flat * kappa)
        g_gain = torch.dot(g_s.flatten(), by_gain.flatten())
        if options.gyro:
            g_gamma = g_gain * gain
            g_var = -g_gamma / (2 * (var + options.eps))
            if batch:
                g_chord.add_((r / sinh).mul_(g_var / (c * r.numel())))
                g_c = g_c - g_var.squeeze() * var / c
        else:
            g_gamma = g_gain / (var + options.eps)
            g_var = -g_gamma * gain
            if batch:
                g_chord.add_((chord > 0) / sinh * (g_var / (2 * root * r.numel())))
                g_c = g_c - g_var.squeeze() * var / (2 * c)

        # chord = q + m.m - 2 x.m - gap^2 with gap = t - m_t
        lost = gap * g_chord
        g_mt = g_mt + 2 * lost.sum()
        g_t = g_ratio.sub_(lost, alpha=2)
        g_square = g_chord.sum() + g_mt / (2 * mt)
        g_mean = g_chord * -2
        g_products = torch.cat([g_mean, g_beta], 1)
        g_basis = torch.bmm(grad, torch.cat([c1.neg(), c2], 1).transpose(1, 2)).sum(0).t() / root
        g_basis = g_basis + torch.bmm(x, g_products.transpose(1, 2)).sum(0).t() * root
        g_m = g_basis[0] + 2 * m * g_square + b * g_cross
        g_b = g_basis[1] + m * g_cross + b * (g_bt / bt)
        g_c = g_c + torch.dot(g_products.flatten(), products.flatten()) / (2 * c) + torch.dot(g_b, b) / (2 * c)

        more = torch.autograd.grad(ctx.point[1], ctx.leaves, g_m, retain_graph=True, allow_unused=True)
        if more[0] is not None:
            g_c = g_c + more[0]
        torch.mul(grad, f, out=buffer)
        _add_outer_(buffer, basis * root, g_mean, g_beta)
        if batch:
            g_t = g_t + more[2].view(-1, 1, 1) / t.shape[2]
            buffer += more[1].unsqueeze(2) / x.shape[2]
        g_q = torch.div(g_t, t).mul_(0.5).add_(g_chord)
        g_c = g_c + torch.dot(g_q.flatten(), q.flatten()) / c
        buffer.addcmul_(x, g_q.mul_(2 * c))
        return buffer, torch.cat([torch.zeros_like(g_b[:1]), g_b * root]), g_gamma.view_as(gamma), g_c, None, None


def _add_outer_(out: Tensor, basis: Tensor, first: Tensor, second: Tensor) -> None:
    """Add two products of rank one to a map in place, twice as fast as a matrix product with two rows."""
    for row, end in zip(basis, (first, second)):
        out.addcmul_(row.unsqueeze(1), end)


def _composite(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: tuple | None, options: _Options):
    """:class:`_BatchNorm` in operations that compilers differentiate."""
    root = torch.sqrt(c)
    q = c * (x * x).sum(1, keepdim=True)
    mean = _mean_point(x.mean(2), torch.sqrt(1 + q).mean((1, 2)), running and running[0], c, options)
    var = None if running is None else running[1] * (c if options.gyro else root)
    shift = beta[1:] * root
    basis = torch.stack([mean[1], shift])
    products = torch.matmul(basis, x) * root
    beta_point = torch.sqrt(1 + (shift * shift).sum()), shift
    longest = _longest(options.exp_limit, x.dtype)
    factor, ends, var = _ends(q, products, mean, beta_point, _scale(gamma, c, options), options.gyro, var, longest)
    out = torch.matmul(basis.t(), ends / root) + x * factor
    return out, mean[1].detach(), var.detach() / (c if options.gyro else root).detach()


def _batch_norm(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: tuple | None, options: _Options):
    """The layer on space parts ``(B, C, N)``: output, mean ``(C,)`` in units of the radius of curvature, variance."""
    function = _composite if plain(x) else _BatchNorm.apply
    return function(x, beta, gamma, c, running, options)


class _LorentzBatchNorm(nn.Module):
    """Batch normalisation: centre at the origin, scale the radii, move to ``beta``."""

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
        device=None,
        dtype=None,
        limit: float | None = None,
        exp_limit: float | None = None,
    ):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        check_sizes(self, num_features=num_features)
        check_number(self, "eps", eps, 0)
        if slope is not None:
            check_number(self, "slope", slope, 0, strict=True)
        if limit is not None:
            check_number(self, "limit", limit, 0, strict=True)
        if exp_limit is not None:
            check_number(self, "exp_limit", exp_limit, 0, strict=True)
            self.exp_limit = exp_limit
        if not 0 <= momentum <= 1:
            raise ValueError(f"{type(self).__name__}: momentum must lie between 0 and 1, got {momentum}.")
        factory = {"device": device, "dtype": dtype}
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.slope, self.limit = slope, limit
        self.manifold = manifold
        with torch.no_grad():
            origin = manifold.origin(num_features, **factory)
        self.beta = ManifoldParameter(origin, manifold)
        self.gamma = nn.Parameter(torch.full((1,), 0.0 if self.gyro else 1.0, **factory))
        self.register_buffer("running_mean", torch.zeros(num_features, **factory))
        self.register_buffer("running_var", torch.ones(1, **factory))

    def _normalize(self, x: Tensor) -> Tensor:
        c = self.manifold.c
        c = c if isinstance(c, Tensor) else torch.tensor(c, dtype=self.gamma.dtype, device=x.device)
        options = _Options(self.eps, self.gyro, self.joint, self.slope, self.limit, self.exp_limit)
        running = None if self.training else (self.running_mean, self.running_var)
        dtype = torch.promote_types(x.dtype, torch.float32)
        with exact(x.device):
            beta, gamma = self.beta.to(dtype), self.gamma.to(dtype)
            running = running and tuple(t.to(dtype) for t in running)
            out, mean, var = _batch_norm(x.to(dtype), beta, gamma, c.to(dtype), running, options)
            if self.training:
                self._update(mean, var, c.detach())
        return out.to(x.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, c: Tensor) -> None:
        """Running variance: linear. Running mean: centroid of the two means, kept as a tangent vector at the origin."""
        m, root = self.momentum, torch.sqrt(c)
        self.running_var.lerp_(var.to(self.running_var.dtype), m)
        time, space = _from_tangent(self.running_mean.to(mean.dtype) * root, _longest(self.exp_limit, mean.dtype))
        _, space = _unit(torch.lerp(time, torch.sqrt(1 + (mean * mean).sum()), m), torch.lerp(space, mean, m))
        length = torch.linalg.vector_norm(space)
        self.running_mean.copy_(space * (torch.asinh(length) / (length.clamp(min=1e-30) * root)))

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, slope={self.slope}"


class LorentzBatchNorm2d(_LorentzBatchNorm):
    r"""Lorentz batch normalisation of maps (Bdeir et al., ICLR 2024), in closed form.

    The mean is the centroid over the images of the centroids over their pixels, the variance the mean distance from it.
    Points are taken to the origin by the inverse boost of the mean, their radii are multiplied by ``gamma / (var +
    eps)``, and they are moved to ``beta`` by its boost; for every pixel that is a factor and two terms of rank one,
    where the published chain of logarithm, transports and exponential writes four maps.

    Args:
        num_features: channels.
        manifold: the hyperboloid.
        eps: added to the variance.
        momentum: share of the new batch in the running statistics.
        slope: if given, the radii pass a maximum-distance rescaling before the move to ``beta`` ("+" models, NeurIPS
            2025), see :func:`hypvision.geometry.lorentz.rescale`.
        limit: of the rescaling, the radius that no point exceeds; by default the largest of float32.
        exp_limit: longest vector that the exponential map at ``beta`` takes, in units of the radius of curvature;
            longer ones are cut. 10 as in the published code by default; that of the "+" models has 100. More than 40 in
            float32 (350 in float64) counts as that much: squares must not overflow.

    Attributes:
        beta: point ``(C + 1,)``, a :class:`~hypvision.geometry.ManifoldParameter` that starts at the origin.
        gamma: ``(1,)``, at first 1.
        running_mean: tangent vector at the origin ``(C,)``. running_var: ``(1,)``.

    Shapes:
        space parts ``(B, C, H, W)`` to the same. Computed in float32 also under autocast.
    """

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, 1, 4)
        return self._normalize(x.flatten(2)).reshape(x.shape)


class LorentzBatchNorm1d(_LorentzBatchNorm):
    """Lorentz batch normalisation of points ``(B, C)`` or tokens ``(B, N, C)``; see :class:`LorentzBatchNorm2d`."""

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.num_features, rank=2 if x.dim() == 2 else 3)
        if x.dim() == 2:
            return self._normalize(x.unsqueeze(2)).squeeze(2)
        return self._normalize(x.transpose(1, 2)).transpose(1, 2)


class LorentzLayerNorm(nn.LayerNorm):
    """Layer normalisation of the space part ``(..., n)``; time follows (Hypformer, KDD 2024)."""


class LorentzRMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation of the space part ``(..., n)``; time follows (HELM, 2025)."""

    def __init__(self, normalized_shape, eps: float = 1e-4, **kwargs):
        super().__init__(normalized_shape, eps=eps, **kwargs)
