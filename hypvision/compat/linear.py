"""Fully connected layers of other code bases, which map points of the hyperboloid or of the
ball."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz, PoincareBall, poincare
from hypvision.geometry.border import stable
from hypvision.geometry.lorentz.cones import space_logits
from hypvision.geometry.numerics import exact, safe_sqrt, square_norm
from hypvision.io import Plain, one_of
from hypvision.nn.checks import check_features, check_manifold, check_sizes
from hypvision.nn.functional import precise, space_time
from hypvision.nn.linear import equal_rows_, isometric_


class FGGLinear(nn.Module):
    r"""Linear layer whose outputs are signed distances to hyperplanes (van der Klis et al., 2026).

    .. math:: s'_j = h(\langle x, V_j\rangle),\quad
              V_j = \left(-|U_j|\sinh\tfrac{\sqrt c a_j}{|U_j|},\;
              U_j\cosh\tfrac{\sqrt c a_j}{|U_j|}\right)

    with the Euclidean product, since the metric is contained in ``V``. Radii grow linearly with the
    weights instead of logarithmically.

    Args:
        in_features, out_features: dimensions of the space parts.
        activation: the function ``h``; None: the identity.
        init: ``"isometric"`` keeps the radius, so that stacks of any depth start with moderate
            radii (orthonormal rows or columns, scaled if the dimension falls; offset 0). The others
            are the published ones: ``"identity"`` (half the identity, offset 0.5), the published
            default, with which radii grow from layer to layer up to the cap of 40, and
            ``"lorentz_kaiming"``, ``"kaiming"``, ``"xavier"``, ``"mlr"`` (standard deviations
            sqrt(1/n), sqrt(2/n), 1/sqrt(n + m), sqrt(5/n); offset 0).
        weight_norm: whether lengths (through a softplus) and directions of ``U`` are trained as
            separate parameters.

    Shapes:
        space parts ``(..., in_features)`` to ``(..., out_features)``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Lorentz,
        activation: nn.Module | None = None,
        init: str = "isometric",
        weight_norm: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_features=in_features, out_features=out_features)
        if activation is not None and not isinstance(activation, nn.Module):
            raise TypeError(f"FGGLinear: activation must be a module or None, got {activation!r}.")
        std = {
            "lorentz_kaiming": in_features**-0.5,
            "kaiming": (2 / in_features) ** 0.5,
            "xavier": (in_features + out_features) ** -0.5,
            "mlr": (5 / in_features) ** 0.5,
        }
        one_of(("isometric", "identity", *std), init=init)
        factory: Plain = {"device": device, "dtype": dtype}
        self.in_features = in_features
        self.out_features = out_features
        self.manifold = manifold
        self.activation = activation if activation is not None else nn.Identity()
        weight = torch.empty(out_features, in_features, **factory)
        with torch.no_grad():
            if init == "isometric":
                isometric_(weight)
            elif init == "identity":
                nn.init.eye_(weight).mul_(0.5)
                # rows below the identity would be zero, and a row of zeros has no direction
                weight[in_features:].normal_(std=0.5 * in_features**-0.5)
            else:
                weight.normal_(std=std[init])
        self.weight = nn.Parameter(weight)
        self.offset = nn.Parameter(
            torch.full((out_features,), 0.5 if init == "identity" else 0.0, **factory)
        )
        length = weight.norm(dim=-1).clamp(min=1e-6)
        self.gain = nn.Parameter(torch.log(torch.expm1(length))) if weight_norm else None

    def planes(self) -> Tensor:
        """Return the matrix ``V`` ``(out_features, in_features + 1)`` of the hyperplanes, time
        first, in float32 or float64."""
        weight = precise(self.weight)
        length = safe_sqrt(square_norm(weight))
        if self.gain is not None:
            target = F.softplus(self.gain).unsqueeze(-1)
            weight = weight * (target / length.where(length > 0, 1.0))
            length = target
        angle = (
            self.manifold.c**0.5 * self.offset.unsqueeze(-1) / length.where(length > 0, 1.0)
        ).clamp(-40, 40)
        return torch.cat([-length * torch.sinh(angle), weight * torch.cosh(angle)], -1)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        planes = self.planes()
        time = space_time(x, self.manifold.c)
        out = F.linear(x, planes[:, 1:].to(x.dtype))
        out = out + (time * planes[:, 0]).to(out.dtype)
        # float16 overflows before radii reach the geometry's cap, so there is nothing to clamp
        if out.dtype != torch.float16:
            limit = math.sinh(40.0) / math.sqrt(self.out_features)
            out = out.clamp(-limit, limit)
        found: Tensor = self.activation(out)
        return found

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class Layer(nn.Module):
    """Base class of layers with a matrix, with their checks and a bias; ``inits`` are the names
    of a subclass's initialisations, ``space`` is the class of its manifolds, and ``matrix`` the
    name of the matrix ``(m, n)``."""

    inits: ClassVar[tuple[str, ...]]
    space: ClassVar[type[Lorentz] | type[PoincareBall]] = PoincareBall
    matrix: ClassVar[str] = "weight"
    weight: nn.Parameter
    manifold: Lorentz | PoincareBall

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Lorentz | PoincareBall,
        bias: bool = True,
        init: str = "isometric",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, self.space, manifold=manifold)
        check_sizes(self, in_features=in_features, out_features=out_features)
        one_of(self.inits, init=init)
        factory: Plain = dict(device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.init = init
        self.manifold = manifold
        weight = nn.Parameter(torch.empty(out_features, in_features, **factory))
        self.register_parameter(self.matrix, weight)
        self._add(factory)
        self.bias = nn.Parameter(torch.zeros(out_features, **factory)) if bias else None
        self.reset_parameters()

    def _add(self, factory: Plain) -> None:
        """Add the further parameters of a subclass."""

    def _init_weight(self) -> None:
        """Draw the initial weights; each subclass says how."""
        raise NotImplementedError

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the matrix as ``init`` says, and set the other parameters to 0."""
        for name, parameter in self.named_parameters(recurse=False):
            if name != self.matrix:
                parameter.zero_()
        self._init_weight()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class PLFCLinear(Layer):
    r"""Fully connected layer whose outputs lie at signed distances from hyperplanes (geoopt's
    ``LorentzPLFC``, 2026).

    .. math:: s'_j = \tfrac{1}{\sqrt c}\sinh(\sqrt c\, v_j(x)), \qquad y = s' \oplus \exp_0(b)

    with the logits ``v`` of :class:`~hypvision.nn.LorentzMLR`; this is the Lorentz form of
    :class:`PoincareFullyConnected`. Distances are cut off at a radius of 40.

    Args:
        in_features, out_features: dimensions of the space parts.
        bias: whether the result is moved by a boost, the parameter ``b``.
        init: ``"isometric"`` keeps the spread of the coordinates, so that stacks of any depth start
            with moderate radii (rows as nearly orthogonal as possible, of length 1, at which a
            logit is linear in the space part), or ``"normal"`` (standard deviation 0.02), as
            published, with which radii shrink fast.

    Attributes:
        z: normals ``(m, n)`` of the hyperplanes.
        a: offsets ``(m,)`` of the hyperplanes, initially 0.
        bias: tangent vector ``b`` at the origin ``(m,)``, initially 0.

    Shapes:
        space parts ``(..., in_features)`` to ``(..., out_features)``.
    """

    inits = ("isometric", "normal")
    space = Lorentz
    matrix = "z"
    z: nn.Parameter
    manifold: Lorentz

    def _add(self, factory: Plain) -> None:
        self.a = nn.Parameter(torch.zeros(self.out_features, **factory))

    def _init_weight(self) -> None:
        if self.init == "isometric":
            equal_rows_(self.z, 1.0)
        else:
            self.z.normal_(std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        with exact(x.device):
            c = self.manifold.c
            root = c**0.5
            limit = 40.0 - 0.5 * math.log(self.out_features)
            distance = space_logits(precise(x), self.z, self.a, c) * root
            out = torch.sinh(distance.clamp(-limit, limit)) / root
            if self.bias is not None:
                shift = self.manifold.expmap0(self.bias.to(out.dtype))
                points = self.manifold.from_space(out)
                out = self.manifold.boost(points, shift.expand_as(points))[..., 1:]
            return out.to(x.dtype)


class PoincareLinear(Layer):
    r"""Linear layer of hyperbolic neural networks, :math:`(M \otimes x) \oplus \exp_0(b)` (Ganea et
    al., NeurIPS 2018).

    Args:
        init: ``"isometric"`` keeps the radius, so that stacks of any depth start with moderate
            radii (orthonormal rows or columns, scaled if the dimension falls), or ``"kaiming"``,
            uniform as in ``nn.Linear`` and as published (hyptorch), with which radii shrink by
            1/sqrt(3) in every layer.

    Shapes:
        points ``(..., in_features)`` to ``(..., out_features)``.
    """

    inits = ("isometric", "kaiming")
    manifold: PoincareBall

    def _init_weight(self) -> None:
        if self.init == "isometric":
            isometric_(self.weight)
        else:
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        out = self.manifold.mobius_matvec(self.weight, x)
        if self.bias is None:
            return out
        return self.manifold.mobius_add(
            out, self.manifold.expmap0(self.bias.to(out.dtype)).expand_as(out)
        )


class PoincareFullyConnected(Layer):
    r"""Fully connected layer of HNN++ (Shimizu et al., ICLR 2021), whose coordinates are distances
    from hyperplanes.

    .. math:: y = \frac{w}{1 + \sqrt{1 + c|w|^2}}, \qquad
              w_k = \frac{\sinh(\sqrt c\, v_k(x))}{\sqrt c}

    with the logits ``v`` of :func:`hypvision.geometry.poincare.hyperplane_logits`; ``w`` is the
    space part of the result on the hyperboloid, and is cut off at a radius of 40. Arguments, shapes
    and errors are those of :class:`PoincareLinear`, except for

    Args:
        bias: whether the hyperplanes have offsets.
        init: ``"isometric"`` keeps the spread of the coordinates of ``w``, so that stacks of any
            depth start with moderate radii (rows as nearly orthogonal as possible and of length
            1/2, at which a logit is linear in the space part). The others are the published ones:
            ``"normal"`` (variance ``1 / (2 n m)``, HNN++), with which radii shrink by more than
            half in every layer, and ``"identity"`` (HypLL: half the identity if ``n <= m``, else
            ``"normal"``).
    """

    inits = ("isometric", "normal", "identity")
    manifold: PoincareBall

    def _init_weight(self) -> None:
        init_planes_(self.weight, self.init)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_features)
        offset = self.bias if self.bias is not None else self.weight.new_zeros(self.out_features)
        return self.manifold.projx(_fully_connected(x, self.weight, offset, self.manifold.c))


@torch.no_grad()
def init_planes_(weight: Tensor, init: str) -> None:
    """Initialise, in place, the normals ``(m, n)`` of the hyperplanes of a Poincare layer; see
    :class:`PoincareFullyConnected` for ``init``."""
    rows, columns = weight.shape
    if init == "isometric":
        equal_rows_(weight, 0.5)
        return
    nn.init.normal_(weight, std=(2 * columns * rows) ** -0.5)
    if init == "identity" and columns <= rows:
        nn.init.eye_(weight).mul_(0.5)


@stable("x")
def _fully_connected(x: Tensor, weight: Tensor, offset: Tensor, c: float | Tensor) -> Tensor:
    root = c**0.5
    v = poincare.hyperplane_logits(x, weight, offset, c) * root
    limit = 40.0 - 0.5 * math.log(v.shape[-1])
    space = torch.sinh(v.clamp(-limit, limit)) / root
    return poincare.from_lorentz(torch.cat([torch.zeros_like(space[..., :1]), space], -1), c)
