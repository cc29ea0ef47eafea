"""Normalisation on the hyperboloid, over space-only features.

Internally, lengths are in units of the radius of curvature.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.checks import at_least, between
from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.geometry.lorentz.means import centroid_space
from hypvision.geometry.lorentz.points import CAPS
from hypvision.geometry.numerics import Function, backward_of, distance_from_square, exact, plain, squash_factor

from .checks import check_features, check_manifold, check_rescaling, check_sizes, takes_statistics
from .functional import rescale_limit

# Least cosh(r) - 1, so that divisions by r and sinh(r) are finite
_LEAST = 1e-30


class _Options(NamedTuple):
    """Constants of a layer."""

    eps: float
    gyro: bool
    joint: bool
    slope: float | None
    limit: float | None = None
    exp_limit: float | None = None

    def longest(self, dtype: torch.dtype) -> float:
        """Length at which the exponential map cuts vectors; at most the longest whose cosh has a square."""
        return CAPS[dtype] if self.exp_limit is None else min(self.exp_limit, CAPS[dtype])


# The running mean and variance of a batch norm in evaluation; None in training.
_Running = tuple[Tensor, Tensor] | None


def _centroid(time: Tensor, space: Tensor) -> tuple[Tensor, Tensor]:
    """Time and space of the centroid for a mean of points given as time ``(...)`` and space ``(..., C)``."""
    space = centroid_space(time.unsqueeze(-1), space, 1.0)
    return torch.sqrt(1 + (space * space).sum(-1)), space


def _from_tangent(tangent: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """Exponential map at the origin of one vector ``(C,)``."""
    length = torch.linalg.vector_norm(tangent)
    size = length.clamp(max=longest)
    return torch.cosh(size), tangent * (torch.sinh(size) / length.clamp(min=1e-30))


def _radial_factor(q: Tensor, g: Tensor, longest: float) -> Tensor:
    """``sinh(min(g r, longest)) / sinh(r)`` for the squared chord ``q = 4 sinh^2(r / 2)``."""
    small = q * (g * g).clamp(min=1) < 1e-2
    g2 = g * g
    series = 1 + q * ((g2 - 1) / 6) * (1 + q * ((g2 - 4) / 20) * (1 + q * ((g2 - 9) / 42)))
    q = torch.where(small, torch.ones_like(q), q)
    ratio = (distance_from_square(q) * g).clamp(max=longest).sinh() / torch.sqrt(q + q * q / 4)
    return torch.where(small, g * series, ratio)


def _composite(
    x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: _Running, options: _Options
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer in operations that autograd and compilers differentiate.

    Boost by -mean, multiply the radii, boost by beta: a factor of every point and two terms of rank one.
    """
    root, longest = torch.sqrt(c), options.longest(x.dtype)
    unit = c if options.gyro else root  # the variance is measured in squared lengths (gyro) or lengths
    q = c * (x * x).sum(1, keepdim=True)
    time = torch.sqrt(1 + q)
    if running is not None:
        mean_time, mean = _from_tangent(running[0] * root, longest)
    else:
        means = time.mean((1, 2)), x.mean(2) * root
        if not options.joint:
            means = _centroid(*means)
        mean_time, mean = _centroid(means[0].mean(), means[1].mean(0))
    shift = beta[1:] * root
    shift_time = torch.sqrt(1 + (shift * shift).sum())
    basis = torch.stack([mean, shift])
    along_mean, along_shift = torch.split(torch.matmul(basis, x) * root, 1, 1)
    mean_square = (mean * mean).sum()
    chord = 2 * (q / (time + 1) * mean_time + (mean_square / (mean_time + 1) - along_mean)).clamp(min=0)
    radius = distance_from_square(chord)
    square = radius * radius
    if running is not None:
        var = running[1] * unit
    else:
        var = square.mean() if options.gyro else radius.mean()
    if options.gyro:
        gain = torch.exp(gamma) / torch.sqrt(var / c + options.eps)
    else:
        gain = gamma / (var / root + options.eps)
    if options.slope is not None:
        gain = gain * squash_factor(square * (gain * gain) / c, rescale_limit(c, options.limit), options.slope)
    factor = _radial_factor(chord, gain, longest)
    arrived_time = torch.sqrt(1 + chord * (1 + chord / 4) * factor * factor)
    back = (time + 1 + chord / 2) / (mean_time + 1) * factor
    final_time = shift_time * arrived_time + factor * along_shift - back * (mean * shift).sum()
    ends = torch.cat([-back, (arrived_time + final_time) / (shift_time + 1)], 1)
    return torch.matmul(basis.t(), ends / root) + x * factor, mean.detach(), (var / unit).detach()


def host_number(x: Any) -> Any:
    """On a CPU, a tensor with one entry as a Python number, because kernel calls would take longer than the
    arithmetic."""
    return x.item() if isinstance(x, Tensor) and x.device.type == "cpu" else x


def _times(x: Tensor, factor: float | Tensor) -> Tensor:
    """The product, without a copy where the factor is the number 1."""
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


def _plus(x: Tensor, y: Tensor, factor: float | Tensor) -> Tensor:
    """``x + factor * y``."""
    return torch.addcmul(x, y, factor) if isinstance(factor, Tensor) else torch.add(x, y, alpha=factor)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    return torch.dot(x.flatten(), y.flatten())


def _add_outer_(out: Tensor, basis: Tensor, ends: Tensor) -> None:
    """Add two products of rank one to a map in place, twice as fast as a matrix product with two rows."""
    for row, end in zip(basis, torch.split(ends, 1, 1)):
        out.addcmul_(row.unsqueeze(1), end)


class _Centroid:
    """The centroid for a mean of points, time ``(...)`` and space ``(..., C)``, with its derivative."""

    def __init__(self, time: Tensor, space: Tensor):
        length = torch.linalg.vector_norm(space, dim=-1)
        square = (time - length).mul_(time + length)
        self.some = square > 1  # for distant points the difference cancels, but for a mean of points it is at least 1
        self.root = square.clamp_(min=1).sqrt_()
        self.mean_time, self.space = time, space / self.root.unsqueeze(-1)

    def time(self) -> Tensor:
        square: Tensor = torch.linalg.vecdot(self.space, self.space)
        return (square + 1).sqrt_()

    def gradients(self, grad: Tensor, by_time: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradients of the mean's space and time from those of the centroid's."""
        if by_time is not None:
            grad = torch.addcmul(grad, (by_time / self.time()).unsqueeze(-1), self.space)
        along = torch.linalg.vecdot(grad, self.space).mul_(self.some)
        space = torch.addcmul(grad, along.unsqueeze(-1), self.space).div_(self.root.unsqueeze(-1))
        return space, along.mul_(self.mean_time).div_(self.root * self.root).neg_()


class _BatchNorm(Function):
    """The layer with a backward written by hand: each pass reads one map and writes one map.

    In units of the radius of curvature: ``m`` and ``b`` are the space parts of mean and beta, ``t = sqrt(1 + q)`` the
    time of a pixel, ``r`` its distance from the mean, ``h = cosh(r) - 1``, ``s`` the result of scaling ``r``, and ``f =
    sinh(s) / sinh(r)``. The inverse boost, the scaling and the boost leave ``f x + e_m m + e_b b`` with ``e_m = -f (t +
    1 + h) / (m_t + 1)`` and ``e_b = cosh(s) + (f x.b + e_m m.b) / (b_t + 1)``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: _Running, options: _Options
    ) -> tuple[Tensor, Tensor, Tensor]:
        k = host_number(c)
        root, longest = k**0.5, options.longest(x.dtype)
        # Allocating a map takes longer than computing it, so reuse this one.
        out = torch.mul(x, x)
        q = _times(out.sum(1, keepdim=True), k)
        t = (q + 1).sqrt_()
        centroids: tuple[_Centroid, ...] = ()
        if running is not None:
            m = _from_tangent(running[0] * root, longest)[1]
        else:
            time, space = t.mean((1, 2)), _times(x.mean(2), root)
            if not options.joint:
                centroids = (_Centroid(time, space),)
                time, space = centroids[0].time(), centroids[0].space
            centroids = (*centroids, _Centroid(time.mean(), space.mean(0)))
            m = centroids[-1].space
        b = beta[1:] * root
        square, cross = host_number(torch.dot(m, m)), host_number(torch.dot(m, b))
        mt, bt = (1 + square) ** 0.5, (1 + host_number(torch.dot(b, b))) ** 0.5
        inner, outer = torch.stack([m, b / (bt + 1)]).mul_(root), torch.stack([m, b]).div_(root)
        cross = cross / (bt + 1)
        products = torch.matmul(inner, x)
        along_mean, along_beta = products[:, :1], products[:, 1:]
        top = t + 1
        h = _plus(square / (1 + mt) - along_mean, q / top, mt).clamp_(min=_LEAST)
        sinh = h.sqrt().mul_((h + 2).sqrt_())
        r = (h + sinh).log1p_()
        if options.gyro:
            var = torch.linalg.vector_norm(r).square() / (r.numel() * k) if running is None else running[1]
            gain = torch.exp(gamma) / torch.sqrt(var + options.eps)
        else:
            var = r.mean() / root if running is None else running[1]
            gain = gamma / (var + options.eps)
        gain = host_number(gain)
        s = r * gain
        bent: Tensor | None = None
        growth: Tensor | None = None
        kappa = bend = 1.0
        if options.slope is not None:
            # s = kappa tanh(bend r gain) / bend
            kappa, limit = math.atanh(0.99) / options.slope, rescale_limit(k, options.limit)
            bend = kappa / limit / root
            bent = s.mul_(bend).tanh_()
            s = bent * (kappa / bend)
        # On a CPU reading the value is cheap, so the limit is applied only where it is needed.
        if s.device.type != "cpu" or s.numel() and not s.amax().item() <= longest:
            growth = (s <= longest).to(s.dtype)  # where s is limited its derivative is 0
            s = s.clamp(max=longest)
        end = torch.sinh(s)
        f = end / sinh
        cosh = end.square_().add_(1).sqrt_()
        ratio = top.add_(h).div_(-(mt + 1))
        ends = torch.empty_like(products)
        torch.mul(f, ratio, out=ends[:, :1])
        ends[:, 1:] = _plus(torch.addcmul(cosh, f, along_beta), ends[:, :1], cross)
        torch.mul(x, f, out=out)
        _add_outer_(out, outer, ends)
        ctx.save_for_backward(x, beta, gamma, c, t, products, h, sinh, r, s, bent, growth, f, cosh, ratio, ends, var)
        ctx.point, ctx.beta, ctx.bases, ctx.centroids = (m, mt), (b, bt, cross), (inner, outer), centroids
        ctx.scaling, ctx.running, ctx.options = (gain, kappa, bend), running, options
        ctx.mark_non_differentiable(m, var)
        return out, m, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read only once, because activation checkpointing forbids a second time
        x, beta, gamma, c, t, products, h, sinh, r, _, _, _, f, _, ratio, ends, var = saved
        options, running = ctx.options, ctx.running
        if torch.is_grad_enabled():

            def composite(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor) -> Tensor:
                return _composite(x, beta, gamma, c, running, options)[0]

            return *backward_of(composite, [x, beta, gamma, c], ctx.needs_input_grad[:4], grad), None, None
        (m, mt), (b, bt, cross), (inner, outer) = ctx.point, ctx.beta, ctx.bases
        gain, k, count = ctx.scaling[0], host_number(c), max(r.numel(), 1)
        root = k**0.5
        buffer = grad * x
        g_f = buffer.sum(1, keepdim=True)
        g_ends = torch.matmul(outer, grad)
        g_1, g_2 = g_ends[:, :1], g_ends[:, 1:]
        by_c = None
        if ctx.needs_input_grad[3]:  # the layer is homogeneous in x, beta and the radius: the rest is added below
            by_c = -_inner(g_f, f) - _inner(g_ends, ends)

        # gradients of e_b, of e_m = ratio f and of the products of x
        g_cross = host_number(_inner(g_2, ends[:, :1]))
        g_f.addcmul_(g_2, products[:, 1:])
        g_1 = _plus(g_1, g_2, cross)
        g_f.addcmul_(g_1, ratio)
        g_products = torch.empty_like(products)
        g_beta = torch.mul(g_2, f, out=g_products[:, 1:])
        g_top = g_1.mul_(f).div_(-(mt + 1))
        g_mt = host_number(_inner(g_top, ratio))

        g_h, g_gain, by_bend = _scaling_gradients(g_f, g_beta, saved, ctx.scaling)
        g_h.add_(g_top)
        if by_c is not None:
            by_c = by_c + by_bend

        # pass the gradient of the gain on to the variance and gamma
        total = var + options.eps
        if options.gyro:
            g_gamma = g_gain * gain
            g_var = -g_gamma / (2 * total)
        else:
            g_gamma = g_gain / total
            g_var = -g_gamma * gain
        if running is None:
            if by_c is not None:
                by_c = by_c - 2 * g_var.squeeze() * var * (1 if options.gyro else 0.5)
            slope = 2 * r if options.gyro else (h > _LEAST).to(h.dtype)
            slope = slope.div_(sinh)
            g_h = _plus(g_h, slope, host_number(g_var / (count * (k if options.gyro else root))))

        # h = m_t (t - 1) + m_t - 1 - x.m
        g_mt = g_mt + host_number(_inner(g_h, t))
        g_t = _plus(g_top, g_h, mt)
        torch.neg(g_h, out=g_products[:, :1])
        g_outer = torch.bmm(ends, grad.transpose(1, 2)).sum(0).div_(root)
        g_inner = torch.bmm(g_products, x.transpose(1, 2)).sum(0).mul_(root)
        g_m = g_outer[0] + g_inner[0]
        g_m = _plus(_plus(g_m, b, g_cross / (bt + 1)), m, g_mt / mt)
        g_b = _plus(g_inner[1], m, g_cross)  # derivative of b / (b_t + 1)
        g_b = _plus(g_b, b, -host_number(torch.dot(g_b, b)) / (bt * (bt + 1))).div_(bt + 1).add_(g_outer[1])
        if running is None:
            g_time = None
            for centroid in reversed(ctx.centroids):
                g_m, g_time = centroid.gradients(g_m, g_time)
            g_t += (g_time / count).view(-1, 1, 1)
            bias = (g_m * (root / count)).view(-1, x.shape[1], 1)
            torch.addcmul(bias, grad, f, out=buffer)
        else:
            if by_c is not None:
                by_c = by_c + _stretched(g_m, m, running[0] * root, options.longest(m.dtype))
            torch.mul(grad, f, out=buffer)
        _add_outer_(buffer, inner, g_products)
        buffer.addcmul_(x, _times(g_t.div_(t), k))
        g_beta = torch.cat([torch.zeros_like(g_b[:1]), g_b * root])
        if by_c is not None:
            by_c = (by_c + _inner(buffer, x) + torch.dot(g_beta, beta)) / (2 * k)
        return buffer, g_beta, g_gamma.view_as(gamma), by_c, None, None


def _scaling_gradients(
    g_f: Tensor, g_cosh: Tensor, saved: tuple[Any, ...], scaling: tuple[Any, float, Any]
) -> tuple[Tensor, Tensor, Tensor | float]:
    """Gradients by ``h``, by the gain and by the logarithm of ``bend``, from those of ``f`` and of ``cosh(s)``."""
    h, sinh, r, s, bent, growth, f, cosh = saved[6:14]
    gain, kappa, bend = scaling
    g_s = torch.addcmul(g_cosh * sinh, g_f, cosh / sinh)
    if growth is not None:
        g_s = g_s * growth
    local = first = gain  # ds/dr and its value at 0; s = first r (1 - bow r^2 + ...)
    bow: Tensor | float = 0.0
    by_gain, by_bend = r, bow
    if bent is not None:
        flat = (1 - bent * bent).mul_(kappa)
        local, first, bow, by_gain = flat * gain, kappa * gain, bend * gain * bend * gain / 3, flat * r
        by_bend = _inner(g_s, s - local * r)
    if growth is not None:
        local = growth * local
    scale = first * first
    alpha = (scale - 1) / 6 - bow
    more = bow * bow * 1.2 - bow * scale / 2 + scale * scale / 120 - (scale / 6 - bow) / 6 + 7 / 360 - alpha / 12
    steep = torch.addcmul(cosh * local, h + 1, f, value=-1).div_(sinh * sinh)
    near = h * (scale.clamp(min=1) if isinstance(scale, Tensor) else max(scale, 1.0)) < 5e-3
    # for near points the difference cancels
    steep = torch.where(near, h * (8 * first * more) + 2 * first * alpha, steep)
    return _plus(g_f * steep, g_cosh, local), _inner(g_s, by_gain), by_bend


def _stretched(grad: Tensor, m: Tensor, tangent: Tensor, longest: float) -> Tensor:
    """Derivative along the tangent vector of :func:`_from_tangent`, from the gradient of its space part ``m``."""
    length, size = torch.linalg.vector_norm(tangent), torch.linalg.vector_norm(m)
    growth = torch.where(size > 0, length * torch.sqrt(1 + size * size) / size.clamp(min=1e-30), 1.0)
    return torch.where(length <= longest, torch.dot(grad, m) * growth, 0.0)


class _LorentzBatchNorm(nn.Module):
    """Batch normalisation: centre at the origin, scale the radii, move to ``beta``."""

    manifold_parameters = ("beta",)
    gyro = False
    joint = False
    exp_limit: float | None = 10.0
    running_mean: Tensor
    running_var: Tensor

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
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
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
        """The layer on space parts ``(B, C, N)``."""
        c, dtype = self.manifold.c, torch.promote_types(x.dtype, torch.float32)
        c = c.to(dtype) if isinstance(c, Tensor) else torch.tensor(c, dtype=dtype, device=x.device)
        batch = self.training and takes_statistics(self, x.shape[0] * x.shape[2])  # an empty batch has no statistics
        running = None if batch else (self.running_mean.to(dtype), self.running_var.to(dtype))
        function = _composite if plain(x) else _BatchNorm.apply
        with exact(x.device):
            beta, gamma = self.beta.to(dtype), self.gamma.to(dtype)
            out, mean, var = function(x.to(dtype), beta, gamma, c, running, self._options())
            if batch:
                self._update(mean, var, c.detach())
        return out.to(x.dtype)

    def _options(self) -> _Options:
        return _Options(self.eps, self.gyro, self.joint, self.slope, self.limit, self.exp_limit)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, c: Tensor) -> None:
        """Running variance: linear. Running mean: centroid of the two means, kept as a tangent vector at the origin."""
        m, root = self.momentum, torch.sqrt(c)
        self.running_var.lerp_(var.to(self.running_var.dtype), m)
        time, space = _from_tangent(self.running_mean.to(mean.dtype) * root, self._options().longest(mean.dtype))
        _, space = _centroid(torch.lerp(time, torch.sqrt(1 + (mean * mean).sum()), m), torch.lerp(space, mean, m))
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
        limit: of the rescaling, the radius that no point exceeds; by default
            :func:`~hypvision.geometry.lorentz.max_distance`. Needs ``slope``.
        exp_limit: longest vector that the exponential map at ``beta`` takes, in units of the radius of curvature;
            longer ones are cut. 10 as in the published code by default; that of the "+" models has 100. More than 40 in
            float32 (350 in float64) counts as that much: squares must not overflow.

    Attributes:
        beta: point ``(C + 1,)``, a :class:`~hypvision.geometry.ManifoldParameter` that starts at the origin.
        gamma: ``(1,)``, at first 1.
        running_mean: tangent vector at the origin ``(C,)``. running_var: ``(1,)``.

    Shapes:
        space parts ``(B, C, H, W)`` to the same. Computed in float32 also under autocast. In training an empty batch
        leaves the running statistics as they are.

    Raises:
        HypvisionError: a batch of a single pixel in training.
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

    def __init__(self, normalized_shape: int | list[int] | torch.Size, eps: float = 1e-4, **kwargs: Any):
        super().__init__(normalized_shape, eps=eps, **kwargs)
