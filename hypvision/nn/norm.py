"""Normalisation on the hyperboloid, over space-only features."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import distance_from_square

from . import scripted
from .functional import exact, squash_factor

__all__ = [
    "GyroLorentzBatchNorm1d",
    "GyroLorentzBatchNorm2d",
    "LorentzBatchNorm1d",
    "LorentzBatchNorm2d",
    "LorentzLayerNorm",
    "LorentzRMSNorm",
]


# Everything below is in units of the radius of curvature. Points are pairs of a time and a space part.


def _unit(time: Tensor, space: Tensor) -> tuple[Tensor, Tensor]:
    """The centroid for a sum of points given as time ``(...)`` and space ``(..., C)``."""
    length = torch.linalg.vector_norm(space, dim=-1)
    norm = torch.sqrt(((time - length) * (time + length)).clamp(min=1e-12))
    space = space / norm.unsqueeze(-1)
    return torch.sqrt(1 + (space * space).sum(-1)), space


def _centroid(mean: Tensor, time: Tensor, joint: bool) -> tuple[Tensor, Tensor]:
    """Centroid: time ``()`` and space ``(C,)``.

    Args:
        mean: mean space part of every image, ``(B, C)``.
        time: times ``(B, 1, N)``.
        joint: over all pixels at once; else over the pixels of each image, then over the images.
    """
    if joint:
        return _unit(time.mean(), mean.mean(0))
    return _unit(*(part.mean(0) for part in _unit(time.mean((1, 2)), mean)))


class _RadialFactor(Function):
    """``sinh(g r) / sinh(r)`` for the squared chord ``q = 4 sinh^2(r / 2)``, with ``g r`` cut at 40."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, g):
        sinh = torch.addcmul(q, q, q, value=0.25).clamp_(min=1e-30).sqrt_()
        radius = distance_from_square(q).clamp_(min=1e-15)
        return torch.mul(radius, g).clamp_(max=40.0).sinh_().div_(sinh), sinh, radius

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx, grad, *_):
        q, g, factor, sinh, radius = ctx.saved_tensors
        cosh = torch.sqrt(1 + (factor * sinh) ** 2)
        cosh = torch.where(radius * g < 40.0, cosh, torch.zeros_like(cosh))
        g2 = g * g
        series = g * (g2 - 1) * (1 / 6 + q * ((g2 - 4) / 60))
        slope = (g * cosh - factor * (1 + q / 2)) / (2 * sinh * sinh)
        slope = torch.where(q * g2.clamp(min=1) < 1e-2, series, slope)  # there the difference cancels
        return grad * slope, (grad * cosh * (radius / sinh)).sum_to_size(g.shape)


def _radial_factor(q: Tensor, g: Tensor) -> Tensor:
    """:class:`_RadialFactor` in operations that torch.compile differentiates (it drops the gradients of the class)."""
    small = q * (g * g).clamp(min=1) < 1e-2
    g2 = g * g
    series = 1 + q * ((g2 - 1) / 6) * (1 + q * ((g2 - 4) / 20) * (1 + q * ((g2 - 9) / 42)))
    q = torch.where(small, torch.ones_like(q), q)
    ratio = (distance_from_square(q) * g).clamp(max=40.0).sinh() / torch.sqrt(q + q * q / 4)
    return torch.where(small, g * series, ratio)


def _ends(q: Tensor, products: Tensor, mean: tuple, beta: tuple, scale: Callable, squared: bool, var: Tensor | None):
    """Boost by -mean, multiply the radii, boost by beta: a factor of the point and two terms of rank one.

    Args:
        q: squared norms of the points, ``(B, 1, N)``.
        products: their inner products with the mean and with beta, ``(B, 2, N)``.
        mean, beta: time ``()`` and space ``(C,)``.
        scale: function of the variance and the squared radii that gives the factor of the radii.
        squared: whether the variance is the mean of squared radii instead of radii.
        var: variance to use; that of the points if None.

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
    factor = _radial_factor(chord, gain) if torch.compiler.is_compiling() else _RadialFactor.apply(chord, gain)[0]
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


def _scale(gamma: Tensor, c: Tensor, options: _Options) -> Callable[[Tensor, Tensor], Tensor]:
    """Factor of the radii from the variance and the squared radii, both in units of the radius of curvature."""

    def scale(var: Tensor, square: Tensor) -> Tensor:
        if options.gyro:
            gain = torch.exp(gamma) / torch.sqrt(var / c + options.eps)
        else:
            gain = gamma / (var / torch.sqrt(c) + options.eps)
        if options.slope is None:
            return gain
        # as published, the limit follows the curvature without a gradient
        return gain * squash_factor(square * (gain * gain) / c, max_distance(c.detach()), options.slope)

    return scale


class _Graph(NamedTuple):
    """The scalars of one forward pass: results on small graphs, and the leaves between which these lie."""

    mean: tuple  # time and space of the mean, from `square` and `average`
    cut: tuple  # the same as leaves of what follows
    basis: Tensor  # (2, C), the space parts of mean and beta
    products: Tensor  # leaf (B, 2, N), basis times map
    factor: Tensor  # (B, 1, N)
    ends: Tensor  # (B, 2, N)
    square: Tensor  # leaf (B, 1, N), squared norms of the map
    average: Tensor | None  # leaf (B, C), means of the images
    var: Tensor


def _trace(x: Tensor, square: Tensor, beta, gamma, c: Tensor, running: tuple | None, options: _Options, cut: bool):
    """Everything but the result. With ``cut`` the graph is divided where products with the map come in."""
    leaf = (lambda t: t.detach().requires_grad_()) if cut else (lambda t: t)
    root = torch.sqrt(c)
    square = leaf(square)
    q = c * square
    average = var = None
    if running is None:
        average = leaf(x.mean(2))
        mean = _centroid(average * root, torch.sqrt(1 + q), options.joint)
    else:
        mean, var = _from_tangent(running[0] * root), running[1] * (c if options.gyro else root)
    ends_of = tuple(leaf(t) for t in mean)
    shift = beta[1:] * root
    basis = torch.stack([ends_of[1], shift])
    wide = (basis.detach() if cut else basis).expand(x.shape[0], *basis.shape)
    products = leaf(torch.bmm(wide, x))
    scale = _scale(gamma, c, options)
    beta_point = torch.sqrt(1 + (shift * shift).sum()), shift
    factor, ends, var = _ends(q, products * root, ends_of, beta_point, scale, options.gyro, var)
    return _Graph(mean, ends_of, basis, products, factor, ends / root, square, average, var)


def _statistics(graph: _Graph, c: Tensor, options: _Options) -> tuple[Tensor, Tensor]:
    """Space part of the batch mean ``(C,)``, in units of the radius of curvature, and variance, without gradients."""
    scale = c.detach() if options.gyro else torch.sqrt(c.detach())
    return graph.mean[1].detach(), graph.var.detach() / scale


def _from_tangent(tangent: Tensor) -> tuple[Tensor, Tensor]:
    """Exponential map at the origin of one vector ``(C,)``."""
    length = torch.linalg.vector_norm(tangent)
    return torch.cosh(length), tangent * (torch.sinh(length) / length.clamp(min=1e-30))


class _BatchNorm(Function):
    """The layer with one map read and one written each way.

    The scalars of the pixels form small graphs of their own, see :class:`_Graph`; only what touches the maps is written
    out here.
    """

    @staticmethod
    def forward(ctx, x, beta, gamma, c, running, options):
        leaves = tuple(t.detach().requires_grad_() for t in (beta, gamma, c))
        # New memory is what costs most here (the system hands it out page by page): one map, used twice.
        out = torch.mul(x, x)
        square = out.sum(1, keepdim=True)
        with torch.enable_grad():
            graph = _trace(x, square, *leaves, running, options, cut=True)
        torch.mul(x, graph.factor.detach(), out=out)
        _add_outer_(out, graph.basis.detach(), graph.ends.detach())
        ctx.save_for_backward(x)
        ctx.graph, ctx.leaves = graph, leaves
        statistics = _statistics(graph, c, options)
        ctx.mark_non_differentiable(*statistics)
        return out, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_):
        (x,), graph, leaves = ctx.saved_tensors, ctx.graph, ctx.leaves
        basis = graph.basis.detach()
        wide = basis.expand(x.shape[0], *basis.shape)
        buffer = grad * x
        grads = [buffer.sum(1, keepdim=True), torch.bmm(wide, grad)]
        wanted = [graph.products, graph.square, *graph.cut, *leaves]
        found = _grad([graph.factor, graph.ends], wanted, grads)
        grad_products, grad_square, grad_time, grad_space, *grad_leaves = found
        grad_basis = torch.bmm(graph.ends.detach(), grad.transpose(1, 2)).sum(0)
        grad_basis += torch.bmm(grad_products, x.transpose(1, 2)).sum(0)
        more, *shares = _grad([graph.basis], [graph.cut[1], *leaves], [grad_basis])
        grad_leaves = [a + b for a, b in zip(grad_leaves, shares)]
        torch.mul(grad, graph.factor.detach(), out=buffer)
        _add_outer_(buffer, basis, grad_products)
        if graph.mean[0].requires_grad:
            inner = [] if graph.average is None else [graph.average]
            rest = _grad(graph.mean, [*inner, graph.square, *leaves], [grad_time, grad_space + more])
            if inner:
                buffer += rest.pop(0).unsqueeze(2) / x.shape[2]
            grad_square = grad_square + rest.pop(0)
            grad_leaves = [a + b for a, b in zip(grad_leaves, rest)]
        buffer.addcmul_(x, 2 * grad_square)
        return buffer, *grad_leaves, None, None


def _add_outer_(out: Tensor, basis: Tensor, ends: Tensor) -> None:
    """Add ``basis^T ends`` to a map in place, twice as fast as a matrix product with two rows."""
    for i in range(2):
        out.addcmul_(basis[i].unsqueeze(1), ends[:, i : i + 1])


def _grad(outputs, inputs, grads) -> list[Tensor]:
    return list(torch.autograd.grad(outputs, inputs, grads, retain_graph=True, materialize_grads=True))


def _batch_norm(x: Tensor, beta: Tensor, gamma: Tensor, c: Tensor, running: tuple | None = None, options=None):
    """The layer on space parts ``(B, C, N)``: output, and the statistics of the points."""
    if not torch.compiler.is_compiling():
        return _BatchNorm.apply(x, beta, gamma, c, running, options)
    graph = _trace(x, (x * x).sum(1, keepdim=True), beta, gamma, c, running, options, cut=False)
    out = torch.matmul(graph.basis.t(), graph.ends) + x * graph.factor
    return out, *_statistics(graph, c, options)


class _LorentzBatchNorm(nn.Module):
    """Batch normalisation: centre at the origin, scale the radii, move to ``beta``."""

    manifold_parameters = ("beta",)
    gyro = False
    joint = False

    def __init__(
        self,
        num_features: int,
        manifold: Lorentz,
        eps: float = 1e-5,
        momentum: float = 0.1,
        slope: float | None = None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}.")
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie between 0 and 1, got {momentum}.")
        factory = {"device": device, "dtype": dtype}
        self.num_features, self.eps, self.momentum, self.slope = num_features, eps, momentum, slope
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
        options = _Options(self.eps, self.gyro, self.joint, self.slope)
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
        time, space = _from_tangent(self.running_mean * root)
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

    Attributes:
        beta: point ``(C + 1,)``, a :class:`~hypvision.geometry.ManifoldParameter` that starts at the origin.
        gamma: ``(1,)``, at first 1.
        running_mean: tangent vector at the origin ``(C,)``. running_var: ``(1,)``.

    Shapes:
        space parts ``(B, C, H, W)`` to the same. Computed in float32 also under autocast.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.num_features:
            raise ValueError(f"expected a map (B, {self.num_features}, H, W), got shape {tuple(x.shape)}.")
        return self._normalize(x.flatten(2)).reshape(x.shape)

    def __prepare_scriptable__(self) -> nn.Module:
        return scripted.Norm(self)


class LorentzBatchNorm1d(_LorentzBatchNorm):
    """Lorentz batch normalisation of points ``(B, C)`` or tokens ``(B, N, C)``; see :class:`LorentzBatchNorm2d`."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or x.shape[-1] != self.num_features:
            raise ValueError(f"expected (B, {self.num_features}) or (B, N, {self.num_features}), got {tuple(x.shape)}.")
        if x.dim() == 2:
            return self._normalize(x.unsqueeze(2)).squeeze(2)
        return self._normalize(x.transpose(1, 2)).transpose(1, 2)


class GyroLorentzBatchNorm2d(LorentzBatchNorm2d):
    """Gyrogroup batch normalisation (GyroLBN): radii are multiplied by ``exp(gamma) / sqrt(var + eps)``.

    The mean is the centroid over all pixels, the variance the mean *squared* distance, and ``gamma`` starts at 0.
    Otherwise as :class:`LorentzBatchNorm2d`.
    """

    gyro = joint = True


class GyroLorentzBatchNorm1d(LorentzBatchNorm1d):
    """Gyrogroup batch normalisation of points or tokens; see :class:`GyroLorentzBatchNorm2d`."""

    gyro = joint = True


class LorentzLayerNorm(nn.LayerNorm):
    """Layer normalisation of the space part ``(..., n)``; time follows (Hypformer, KDD 2024)."""


class LorentzRMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation of the space part ``(..., n)``; time follows (HELM, 2025)."""

    def __init__(self, normalized_shape, eps: float = 1e-4, **kwargs):
        super().__init__(normalized_shape, eps=eps, **kwargs)
