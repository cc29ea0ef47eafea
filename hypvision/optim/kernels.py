"""One step of points on a manifold, in place.

Tangent vectors at a point x are given in its *frame*: transported along the radius to the origin,
where the metric is that of flat space. They are ``(..., n)`` numbers on both models, do not cancel
at any radius, and stay the same when a curvature changes with
:func:`~hypvision.geometry.lorentz.change_curvature`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypvision.geometry import Lorentz, Manifold, PoincareBall, lorentz, poincare
from hypvision.geometry._typing import Curvature
from hypvision.geometry.lorentz.points import CAP
from hypvision.geometry.numerics import has_float64, readable

# the length of the shortest vector that has a direction
_SHORTEST = 1e-30
# By dtype, the largest length of a gradient: products of points at the greatest radius with vectors
# 100 times as long (momentum) do not overflow.
_STEEPEST = {torch.float32: 1e15, torch.float64: 1e120}


# values that the gradient computes and that the step from the same point needs
Where = tuple[Tensor, ...]
# a number, or one number per row
Rate = Tensor | float


def _square(v: Tensor) -> Tensor:
    """Return the squared norms ``(N,)`` of vectors ``(N, n)``."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1)
    return norm.mul_(norm)


def _product(v: Tensor, w: Tensor, buffer: Tensor | None = None) -> Tensor:
    """Return the inner products ``(N,)`` of vectors ``(N, n)``; ``buffer`` is overwritten if it is
    given."""
    return torch.mul(v, w, out=buffer).sum(-1)


def _length(v: Tensor) -> Tensor:
    """Return the lengths ``(N,)`` of vectors ``(N, n)``, in float64 if their squares overflow or
    cannot be looked at."""
    norm: Tensor
    if readable(v):
        norm = torch.linalg.vector_norm(v, dim=-1)
        if norm.isfinite().all():
            return norm
    norm = torch.linalg.vector_norm(v, dim=-1, dtype=torch.float64 if has_float64(v) else v.dtype)
    return norm


def shorten_(gradient: Tensor) -> Tensor:
    """Shorten, in place, vectors of a gradient that are so long that their products would overflow;
    return the lengths ``(N,)`` of all vectors."""
    limit = _STEEPEST[gradient.dtype]
    norm = _length(gradient)
    if not readable(gradient) or not norm.max() <= limit:
        gradient.mul_((limit / norm).clamp_(max=1).unsqueeze(1))
        norm.clamp_(max=limit)
    return norm


def _sound(scale: Tensor) -> Tensor:
    """Return denominators bounded below by rounding errors; smaller ones belong to steps across the
    origin, which rotate nothing."""
    return scale.clamp_(min=64 * torch.finfo(scale.dtype).eps)


def _turn_(
    m: Tensor, x: Tensor, b: Tensor, size_x: Rate, size_b: Tensor, products: Where, y: Where
) -> None:
    r"""Rotate ``m`` in place by the gyration of ``X = size_x x`` and ``Y = B + (...) X``,
    ``B = size_b b``.

    This is what parallel transport from ``X`` to :math:`X \oplus Y` does to a vector in its frame.
    X and Y are points of the unit ball. ``products`` are the inner products of X and X, X and B, B
    and B; ``y`` those of X and Y, Y and Y. Products of the unscaled vectors could overflow.
    """
    xx, xb, bb = products
    xy, yy = y
    mx = _product(m, x) * size_x
    mb = _product(m, b) * size_b
    scale = _sound(1 + 2 * xy + xx * yy)
    # The result is m + k1 A m + k2 A (A m) with the skew-symmetric A = X B^T - B X^T.
    k1 = 2 * (1 + xy) / scale
    k2 = 2 / scale
    # ax and ab are the inner products of X and B with A m.
    ax = xx * mb - xb * mx
    ab = xb * mb - bb * mx
    m.addcmul_(x, ((k1 * mb + k2 * ab) * size_x).to(m.dtype).unsqueeze(1))
    m.addcmul_(b, ((k1 * mx + k2 * ax) * size_b).neg_().to(m.dtype).unsqueeze(1))


class Kernel:
    """The interface of the kernels, and steps in flat space; points are ``(N, d)``, vectors in
    frames ``(N, n)``."""

    def __init__(self, manifold: Manifold):
        self.manifold = manifold

    def size(self, width: int) -> int:
        """Return the dimension n of vectors in frames, for points of ``width`` coordinates."""
        return width - self.manifold.extra

    def gradient(
        self, x: Tensor, grad: Tensor, c: Curvature, decay: float = 0.0
    ) -> tuple[Tensor, Where]:
        """Return the Riemannian gradient in the frame, for the Euclidean gradient
        ``grad + decay x``, and values that the step from ``x`` needs."""
        return (torch.add(grad, x, alpha=decay) if decay else grad), ()

    def frame(self, x: Tensor, v: Tensor, c: Curvature) -> Tensor:
        """Return the tangent part of vectors ``v`` ``(N, d)`` at ``x``, in the frame."""
        return v

    def step_(
        self, x: Tensor, d: Tensor, rate: Rate, m: Tensor | None, where: Where, c: Curvature
    ) -> None:
        """Move ``x`` along ``-rate d``, with rates of at least 0, and transport ``m``, which may be
        ``d`` itself."""
        x -= d * (rate.unsqueeze(1) if isinstance(rate, Tensor) and rate.dim() else rate)

    def decay_(self, x: Tensor, share: Rate, c: Curvature) -> None:
        """Move ``x`` by ``share``, between 0 and 1, of the way to the origin."""
        x *= 1 - share

    def project_(self, x: Tensor, c: Curvature) -> None:
        """Bring points that have left the manifold back to it, in place."""

    def change_(self, x: Tensor, old: Curvature, new: Curvature, move: str) -> None:
        """Change points of curvature ``old`` to points of curvature ``new``, in place."""


class LorentzKernel(Kernel):
    r"""Steps on the hyperboloid by the exponential map; points ``(N, n + 1)``, vectors ``(N, n)``.

    With the radius of curvature :math:`R = 1/\sqrt c`, the step :math:`\theta = \eta|d|/R` and the
    unit vector :math:`\hat d` along ``d``, a point with the space part ``s`` and the time ``t``
    moves to

    .. math:: s' = \Big(\cosh\theta - \sinh\theta\,\frac{s \cdot \hat d}{t + R}\Big) s
              - R \sinh\theta\, \hat d

    and a vector along ``d`` becomes, in the frame of the new point,

    .. math:: m' = f m - \tanh\tfrac\theta 2\, |m| \frac{1 + f}{t' + R} s', \quad
              f = \frac{t + R}{t' + R \cosh\theta}
    """

    def gradient(
        self, x: Tensor, grad: Tensor, c: Curvature, decay: float = 0.0
    ) -> tuple[Tensor, Where]:
        time = x[:, 0]
        space = x[:, 1:]
        root = c**0.5
        reach = time + 1 / root
        buffer = torch.empty_like(grad[:, 1:], memory_format=torch.contiguous_format)
        # The radial derivative is sinh(r) g_t + cosh(r) g_r; in perpendicular directions the
        # derivative is g itself.
        along = torch.addcdiv(grad[:, 0], _product(space, grad[:, 1:], buffer), reach)
        if decay:
            along += 2 * decay * time
        along *= root
        return torch.addcmul(grad[:, 1:], space, along.unsqueeze(1), out=buffer), (reach,)

    def frame(self, x: Tensor, v: Tensor, c: Curvature) -> Tensor:
        return lorentz.transp0back(x, lorentz.proju(x, v, c), c)

    @staticmethod
    def _arrive_(x: Tensor, c: Curvature) -> Tensor:
        """Compute the times of moved points in place, and return them, ``(N,)``."""
        norm = _length(x[:, 1:])
        radius = c**-0.5
        radius = radius if isinstance(radius, Tensor) else norm.new_full((), radius)
        if not torch.compiler.is_compiling():
            return torch.hypot(norm, radius.to(norm.dtype), out=x[:, 0])
        x[:, 0] = torch.hypot(norm, radius.to(norm.dtype))  # compilers take no column for ``out``
        return x[:, 0]

    @staticmethod
    def _cap_(x: Tensor, c: Curvature) -> None:
        """Scale points that have left the largest radius back to it, in place; so far out all
        coordinates scale in proportion."""
        time = x[:, 0]
        farthest = math.cosh(CAP) * c**-0.5
        if not readable(x) or not time.max() <= farthest:
            x.mul_((farthest / time).clamp_(max=1).unsqueeze(1))

    def step_(
        self, x: Tensor, d: Tensor, rate: Rate, m: Tensor | None, where: Where, c: Curvature
    ) -> None:
        space = x[:, 1:]
        (reach,) = where
        norm = torch.linalg.vector_norm(d, dim=-1).clamp_(min=_SHORTEST)
        angle = (norm * (rate * c**0.5)).clamp_(max=CAP)
        cosh = angle.cosh()
        size = angle.sinh().div_(norm)
        half = angle.div_(2).tanh_()
        xd = _product(space, d)
        if m is not None and m is not d:
            # The point and the step are mapped into the unit ball.
            products = _square(space) / (reach * reach), -xd * half / (reach * norm), half * half
            _turn_(m, space, d, 1 / reach, -half / norm, products, products[1:])
        ahead = torch.addcdiv(cosh, size * xd, reach, value=-1)
        space.mul_(ahead.unsqueeze(1)).addcmul_(d, (size * -(c**-0.5)).unsqueeze(1))
        time = self._arrive_(x, c)
        if m is d:
            keep = reach / (time + cosh * c**-0.5)
            turn = half * norm / (time + c**-0.5)
            m.mul_(keep.unsqueeze(1)).addcmul_(
                space, torch.addcmul(turn, turn, keep).neg_().unsqueeze(1)
            )
        self._cap_(x, c)

    def decay_(self, x: Tensor, share: Rate, c: Curvature) -> None:
        """Replace ``x`` by the centroid of itself, with the weight ``1 - share``, and the origin,
        with the weight ``share``."""
        space = x[:, 1:]
        rest = 1 - share
        size = rest * rest + share * share + (2 * share * rest * c**0.5) * x[:, 0]
        space.mul_((rest / torch.sqrt(size)).unsqueeze(1))
        self._arrive_(x, c)

    def project_(self, x: Tensor, c: Curvature) -> None:
        """Compute the time anew from the space part, in place."""
        x.copy_(lorentz.projx(x, c))

    def change_(self, x: Tensor, old: Curvature, new: Curvature, move: str) -> None:
        function = lorentz.change_curvature if move == "tangent" else lorentz.scale_curvature
        x.copy_(function(x, old, new))


class BallKernel(Kernel):
    """Steps in the ball by the manifold's retraction; points and vectors ``(N, n)``."""

    manifold: PoincareBall

    def _most(self, x: Tensor) -> float:
        """Return the largest ``sqrt(c) |x|`` that points may have."""
        return 1 - (poincare._default_eps(x) if self.manifold.eps is None else self.manifold.eps)

    def _gap(self, x: Tensor, c: Curvature, outside: bool = False) -> Tensor:
        """Return ``X = 1 - c |x|^2``, shape ``(N,)``, computed in float64 near the boundary; with
        ``outside`` points outside of the ball are first brought back, in place."""
        norm: Tensor
        most = self._most(x)
        radius = c**-0.5
        if readable(x):
            norm = torch.linalg.vector_norm(x, dim=-1)
            if norm.max() <= min(0.99, most) * radius:
                return 1 - c * norm * norm
        dtype = torch.float64 if has_float64(x) else None
        norm = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
        if outside:
            x.mul_((most * radius / norm).clamp_(max=1).unsqueeze(1))
            norm = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
        # Rounding may put points a little outside, hence the clamp.
        return (1 - c * norm * norm).clamp_(min=max((1 - most**2) / 2, 1e-9)).to(x.dtype)

    def gradient(
        self, x: Tensor, grad: Tensor, c: Curvature, decay: float = 0.0
    ) -> tuple[Tensor, Where]:
        gap = self._gap(x, c)
        if decay:
            grad = torch.add(grad, x, alpha=decay)
        return grad * (gap / 2).unsqueeze(1), (gap,)

    def frame(self, x: Tensor, v: Tensor, c: Curvature) -> Tensor:
        return 2 * poincare.transp0back(x, v, c)

    def _moved(self, x: Tensor, d: Tensor, rate: Rate, gap: Tensor, c: Curvature) -> Tensor:
        """Return the points that the retraction reaches in a step along ``-rate d``, which is
        ``-rate X d / 2`` in coordinates."""
        if not self.manifold.exact:
            return torch.addcmul(x, d, (gap * rate).unsqueeze(1), value=-0.5)
        # This is the Moebius sum of x and tanh(angle) along -d, as in poincare.expmap.
        norm = torch.linalg.vector_norm(d, dim=-1).clamp_(min=_SHORTEST)
        angle = (norm * (rate * c**0.5 / 2)).clamp_(max=CAP)
        both = torch.addcmul(x, d, (angle.tanh() / (norm * -(c**0.5))).unsqueeze(1))
        square = _square(both) * c
        total = (gap / angle.cosh() ** 2 + square).clamp_(min=_SHORTEST)
        return both.mul_((gap / total).unsqueeze(1)).addcmul_(x, (square / total).unsqueeze(1))

    def step_(
        self, x: Tensor, d: Tensor, rate: Rate, m: Tensor | None, where: Where, c: Curvature
    ) -> None:
        (gap,) = where
        end = self._moved(x, d, rate, gap, c)
        end_gap = self._gap(end, c, outside=True)
        if m is None:
            x.copy_(end)
            return
        buffer = torch.empty_like(end)
        along = _product(x, m, buffer)
        delta = torch.sub(end, x, out=buffer)
        x.copy_(end)
        ahead = _product(delta, m, end)
        # This is the gyration of poincare.transp, computed from the new point and the difference
        # from the old one.
        square = _square(delta) * c
        share = 2 * c / (gap * end_gap + square)
        back = share * (gap * ahead - square * along)
        across = share * ((end_gap + square) * along + (1 - gap) * ahead) + back
        m.addcmul_(x, back.unsqueeze(1)).addcmul_(delta, across.unsqueeze(1), value=-1)

    def decay_(self, x: Tensor, share: Rate, c: Curvature) -> None:
        """Move ``x`` to ``1 - share`` of its distance from the origin, in place."""
        x.copy_(poincare.mobius_scalar_mul(1 - share, x, c))

    def project_(self, x: Tensor, c: Curvature) -> None:
        """Bring points outside of the ball inside, in place."""
        x.copy_(poincare.project(x, c, self.manifold.eps))

    def change_(self, x: Tensor, old: Curvature, new: Curvature, move: str) -> None:
        function = poincare.change_curvature if move == "tangent" else poincare.scale_curvature
        x.copy_(function(x, old, new))
        self.project_(x, new)


def kernel_of(manifold: Manifold) -> Kernel:
    """Return the kernel for points of a manifold."""
    if isinstance(manifold, Lorentz):
        return LorentzKernel(manifold)
    return BallKernel(manifold) if isinstance(manifold, PoincareBall) else Kernel(manifold)
