"""Ideal prototypes: classes as points at infinity, with the Busemann loss of features towards them,
a classifier's head, and a loss of metric learning.

Paper: "Hyperbolic Busemann Learning with Ideal Prototypes", Ghadimi Atigh, Keller-Ressel, Mettes
(NeurIPS 2021, arXiv 2106.14472).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Manifold, lorentz
from hypvision.geometry._typing import Curvature
from hypvision.geometry.numerics import exact, heading, sinhc_sqrt
from hypvision.io import ArgumentError, at_least, one_of

_STEPS = 1000  # gradient steps of the search for separated prototypes, as published


class IdealPrototypes(nn.Module):
    """A fixed ideal point of the ball (a unit vector) for each class.

    Args:
        num_classes: number of classes ``K``, at least 2.
        dim: dimension ``n`` of the ball, at least 2.
        method: ``"separated"``: the mean over the prototypes of the largest cosine with another
            prototype is small. Up to ``n + 1`` classes this is a regular simplex; for more classes
            gradient descent finds the prototypes, as published. ``"circle"``: equally spaced on a
            circle in the first two dimensions. A tensor ``(K, n)``: the directions themselves.
        seed: seed of the directions from which the gradient descent starts.

    Attributes:
        prototypes: unit vectors ``(K, n)``, a buffer.

    Raises:
        ValueError: a size is too small, or the tensor has another shape or a row of zeros.
    """

    prototypes: Tensor

    def __init__(
        self, num_classes: int, dim: int, method: str | Tensor = "separated", seed: int = 0
    ):
        super().__init__()
        at_least(2, integer=True, num_classes=num_classes, dim=dim)
        if isinstance(method, Tensor):
            found = _directions(method, num_classes, dim)
        else:
            one_of(("separated", "circle"), method=method)
            found = _circle(num_classes, dim)
            if method == "separated" and dim > 2:
                found = _separated(num_classes, dim, seed)
        self.register_buffer("prototypes", found.float())

    def forward(self, u: Tensor) -> Tensor:
        """Return the cosines ``(..., K)`` of features ``(..., n)`` with the prototypes; the nearest
        prototype has the largest."""
        return heading(u.float())[0] @ self.prototypes.T


def _directions(given: Tensor, num_classes: int, dim: int) -> Tensor:
    if given.shape != (num_classes, dim):
        raise ArgumentError(
            f"method must be prototypes of shape {(num_classes, dim)}, got {tuple(given.shape)}."
        )
    if not given.any(-1).all():
        raise ArgumentError("method has a row of zeros, which has no direction. Replace it.")
    return F.normalize(given.detach().double(), dim=-1)


def _circle(count: int, dim: int) -> Tensor:
    angles = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    return F.pad(torch.stack([angles.cos(), angles.sin()], -1), (0, dim - 2))


def _separated(count: int, dim: int, seed: int) -> Tensor:
    if count <= dim + 1:
        return _simplex(count, dim)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    own = torch.eye(count, dtype=torch.bool)
    with torch.enable_grad():
        for _ in range(_STEPS):
            points = F.normalize(points, dim=-1).requires_grad_()
            cosines = (points @ points.T).masked_fill(own, -2.0)
            (grad,) = torch.autograd.grad(cosines.amax(-1).mean(), points)
            points = (points - 0.1 * grad).detach()
    return F.normalize(points, dim=-1)


def _simplex(count: int, dim: int) -> Tensor:
    """Return ``count`` unit vectors whose cosines are all ``-1 / (count - 1)``, the least
    possible."""
    centred = torch.eye(count, dtype=torch.float64) - 1 / count
    # The rows span count - 1 dimensions; express them in a basis of these.
    values, basis = torch.linalg.eigh(centred)
    flat = centred @ basis[:, values > 0.5]
    return F.pad(F.normalize(flat, dim=-1), (0, dim - count + 1))


class BusemannPrototypeLoss(nn.Module):
    r"""Penalised Busemann loss of features, each towards the prototype of its class.

    For :math:`z = \exp_0(u)` in the ball of curvature :math:`-c`, with the Busemann function
    :math:`b_p`,

    .. math:: \sqrt c\, b_p(z) - \phi \log(1 - c |z|^2) + \phi \log 2

    The second term keeps features away from the border, to which the first alone would draw them.
    The loss is computed from ``u`` instead of ``z``, so that no feature is too long.

    Args:
        slope: :math:`\phi` as a multiple of the dimension, 0.1 as published; 0 drops the second
            term.
        c: minus the curvature of the ball.

    Shapes:
        features ``(B, n)``, labels ``(B,)`` and prototypes, unit vectors ``(K, n)``, to a scalar:
        the mean over the batch. float32 also under autocast.
    """

    def __init__(self, slope: float = 0.1, c: float = 1.0):
        super().__init__()
        at_least(0, slope=slope)
        self.slope = slope
        self.c = c

    def forward(self, u: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
        if u.dim() != 2 or prototypes.dim() != 2 or u.shape[1] != prototypes.shape[1]:
            raise ArgumentError(
                "Features must be (B, n) and prototypes (K, n), got "
                f"{tuple(u.shape)} and {tuple(prototypes.shape)}."
            )
        with exact(u.device):
            u = u.to(torch.promote_types(u.dtype, torch.float32))
            return _penalised(u, prototypes.to(u.dtype)[labels], self.slope, self.c).mean()


class PrototypeHead(nn.Module):
    """Classifier's head whose classes are ideal prototypes: it maps features ``(B, F)`` to logits
    ``(B, K)``, the negative loss towards each prototype. The nearest prototype has the largest
    logit, and :class:`BusemannPrototypeLoss` is the mean of the negative logits of the true
    classes.

    Args:
        in_features: number of features ``F``.
        num_classes, dim, method: see :class:`IdealPrototypes`; ``dim`` is that of the ball.
        slope, c: see :class:`BusemannPrototypeLoss`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        dim: int = 50,
        method: str = "separated",
        slope: float = 0.1,
        c: float = 1.0,
    ):
        super().__init__()
        self.linear = nn.Linear(in_features, dim)
        self.ideal = IdealPrototypes(num_classes, dim, method)
        at_least(0, slope=slope)
        self.slope = slope
        self.c = c

    def forward(self, x: Tensor) -> Tensor:
        u = self.linear(x)
        with exact(u.device):
            u = u.to(torch.promote_types(u.dtype, torch.float32)).unsqueeze(-2)
            return -_penalised(u, self.ideal.prototypes.to(u.dtype), self.slope, self.c)


class PrototypeMetricLoss(nn.Module):
    """:class:`BusemannPrototypeLoss` of points of the hyperboloid that are given by their space
    parts.

    Args:
        num_classes, dim, method: see :class:`IdealPrototypes`.
        manifold: the manifold, of which only the curvature ``c`` is used.
        slope: see :class:`BusemannPrototypeLoss`.

    Shapes:
        space parts ``(B, n)`` and labels ``(B,)``, to a scalar.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        manifold: Manifold,
        method: str = "separated",
        slope: float = 0.1,
    ):
        super().__init__()
        at_least(0, slope=slope)
        self.ideal = IdealPrototypes(num_classes, dim, method)
        self.manifold = manifold
        self.slope = slope

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        c = self.manifold.c
        # In the ball, the tangent vector at the origin of the same point is half as long.
        u = lorentz.logmap0(lorentz.from_space(x, c), c) / 2
        return _penalised(u, self.ideal.prototypes.to(u.dtype)[labels], self.slope, c).mean()


def _penalised(u: Tensor, p: Tensor, slope: float, c: Curvature) -> Tensor:
    """Return the loss ``(...)`` of features ``(..., n)``, each towards its prototype ``(...,
    n)``."""
    phi = slope * u.shape[-1]
    # With r = sqrt(c) |u|: two forms, of which each computes the rows of the other at a safe place.
    square = c * u.square().sum(-1)
    is_near = square < 0.25
    aside = is_near.unsqueeze(-1)
    near = _near(u.masked_fill(~aside, 0.0), p, square.masked_fill(~is_near, 0.0), phi, c)
    far = _far(torch.where(aside, p, u), p, is_near, phi, c)
    return torch.where(is_near, near, far) + phi * math.log(2)


def _near(u: Tensor, p: Tensor, square: Tensor, phi: float, c: Curvature) -> Tensor:
    r"""Return ``sqrt(c)`` times the Busemann function of the points ``exp_0(u)`` of the ball, plus
    ``phi`` times their border :math:`2 \log\cosh r`, from ``square``, :math:`r^2 = c |u|^2`.

    The function is :math:`\log(\cosh d - \sinh d \cos\theta)` with :math:`d = 2 r`, here
    :math:`\log(1 + 2 \sinh^2 r - 2 \sqrt c\, \tfrac{\sinh d}{d}\, u \cdot p)`, which is smooth at
    the origin, where a head of zeros begins.
    """
    sinh_square = square * sinhc_sqrt(square) ** 2
    along = 2 * c**0.5 * sinhc_sqrt(4 * square) * (u * p).sum(-1)
    return torch.log1p(2 * sinh_square - along) + phi * torch.log1p(sinh_square)


def _far(u: Tensor, p: Tensor, left_out: Tensor, phi: float, c: Curvature) -> Tensor:
    r"""Return what :func:`_near` does, with the function as
    :math:`d + \log(\tfrac{1 - \cos\theta}{2} + e^{-2d} \tfrac{1 + \cos\theta}{2})`, which no length
    overflows; rows that are ``left_out`` get any finite value."""
    size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    direction = u / size
    r = c**0.5 * size.squeeze(-1)
    # (1 - cos(theta)) / 2 and (1 + cos(theta)) / 2, without the difference of nearly equal numbers
    against = ((direction - p).square().sum(-1) / 4).masked_fill(left_out, 0.5)
    along = ((direction + p).square().sum(-1) / 4).masked_fill(left_out, 0.5)
    busemann = 2 * r + torch.logaddexp(_log(against), _log(along) - 4 * r)
    border = 2 * (r + F.softplus(-2 * r)) - 2 * math.log(2)
    out: Tensor = busemann + phi * border
    return out


def _log(x: Tensor) -> Tensor:
    """Return the logarithm of numbers that are at least 0: minus infinity, with gradient 0, at
    0."""
    return torch.where(x > 0, x, 1.0).log().masked_fill(x == 0, -math.inf)
