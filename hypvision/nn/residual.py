"""Residual connections on the hyperboloid, between features that are space parts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.io import ArgumentError, Plain, one_of

from .checks import check_features, check_manifold, check_rescaling
from .functional import averaged, radial_rescale


class LorentzResidual(nn.Module):
    r"""Residual connection: a sum of the points ``x`` and ``y``, computed in one of three ways.

    - ``"space"``: the space parts are added and the time is computed anew (Bdeir et al., ICLR
      2024).
    - ``"average"``: :math:`m / (\sqrt c\sqrt{-\langle m, m\rangle_L})` with :math:`m = x + w y` and
      a learned ``w`` that starts at 1 (He et al., "Lorentzian residual neural networks", KDD 2025);
      the space part can be scaled.
    - ``"boost"``: the Moebius sum :math:`x \oplus y`, by parallel transport (Chami et al., NeurIPS
      2019).

    Args:
        manifold: the hyperboloid.
        mode: ``"space"``, ``"average"`` or ``"boost"``.
        scale: for ``"average"``, a number by which the space part is multiplied; ``"learned"`` for
            a parameter whose logarithm is learned, from ``log(scale_init)``; None for 1.
        slope: if given, the sum passes a maximum-distance rescaling with this slope ("+" models,
            Bdeir et al., NeurIPS 2025).
        dim: the dimension of the channels: 1 for maps, -1 for tokens.
        limit: the radius that no point exceeds after the rescaling; by default
            :func:`~hypvision.geometry.lorentz.max_distance`. It needs ``slope``.
        scale_init: the value at which a learned scale starts; by default the published one, with
            which radii grow by 4 in every connection unless a later layer reduces them.

    Shapes:
        two tensors of space parts of equal shape to one of that shape. ``keep``, numbers for each
        point or image, 1 in the dimension of the channels, says how much ``y`` counts: where it is
        0, as in stochastic depth, the result is that of ``x`` alone, scaled and rescaled.
    """

    log_scale: Tensor | None
    scale: float | None

    def __init__(
        self,
        manifold: Lorentz,
        mode: str = "space",
        scale: float | str | None = None,
        slope: float | None = None,
        dim: int = -1,
        limit: float | None = None,
        scale_init: float = math.exp(4.0),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        one_of(("space", "average", "boost"), mode=mode)
        check_manifold(self, Lorentz, manifold=manifold)
        if scale is not None and mode != "average":
            raise ArgumentError(
                f'LorentzResidual: scale is for mode="average" alone, got scale={scale!r} for '
                f"{mode!r}."
            )
        if isinstance(scale, str) and scale != "learned":
            raise ArgumentError(
                'LorentzResidual: scale must be "learned", a positive number or None, got '
                f"{scale!r}."
            )
        start = scale_init if isinstance(scale, str) else scale
        check_rescaling(self, slope, limit, scale_init=scale_init, scale=start)
        factory: Plain = {"device": device, "dtype": dtype}
        self.manifold = manifold
        self.mode = mode
        self.slope = slope
        self.dim = dim
        self.limit = limit
        if mode == "average":
            self.weight = nn.Parameter(torch.ones((), **factory))
        if isinstance(scale, str):
            self.scale = None
            self.log_scale = nn.Parameter(torch.tensor(math.log(scale_init), **factory))
        else:
            self.scale = scale
            # Weights record a fixed scale, too; the number saves kernels.
            fixed = None if scale is None else torch.tensor(math.log(scale), **factory)
            self.register_buffer("log_scale", fixed)

    def forward(self, x: Tensor, y: Tensor, keep: Tensor | None = None) -> Tensor:
        check_features(self, x, dim=self.dim)
        check_features(self, y, dim=self.dim, name="y")
        if x.shape != y.shape:
            raise ArgumentError(
                f"LorentzResidual: x and y must have the same shape, got {tuple(x.shape)} and "
                f"{tuple(y.shape)}."
            )
        if keep is not None and (keep.dim() != x.dim() or keep.shape[self.dim] != 1):
            raise ArgumentError(
                "LorentzResidual: keep must have the dimensions of x, with 1 for the channels, got "
                f"{tuple(keep.shape)} for {tuple(x.shape)}."
            )
        c = self.manifold.c
        if self.mode == "average":
            out = self._average(x, y, c, keep)
        else:
            branch = y if keep is None else y * keep
            out = x + branch if self.mode == "space" else self._boosted(x, branch)
        return radial_rescale(out, c, self.slope, self.limit, self.dim)

    def _boosted(self, x: Tensor, y: Tensor) -> Tensor:
        points = (self.manifold.from_space(z.movedim(self.dim, -1)) for z in (x, y))
        out: Tensor = self.manifold.boost(*points)[..., 1:]
        return out.movedim(-1, self.dim)

    def _average(self, x: Tensor, y: Tensor, c: float | Tensor, keep: Tensor | None) -> Tensor:
        first = x.movedim(self.dim, -1)
        second = y.movedim(self.dim, -1)
        weight: Tensor = self.weight
        if keep is not None:
            weight = weight * keep.movedim(self.dim, -1)
        size: Tensor | float | None = self.scale
        if size is None and self.log_scale is not None:
            size = self.log_scale.exp()
        out = averaged(first, second, weight, c, 1e-4, size)  # 1e-4 is the published clamp
        return out.movedim(-1, self.dim).to(x.dtype)

    def _load_from_state_dict(self, state_dict: Plain, prefix: str, *args: Any) -> None:
        """Take a fixed scale from weights, too, unless it is the own one but for rounding."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        given = state_dict.get(f"{prefix}log_scale")
        if self.scale is None or given is None:
            return
        own = math.log(self.scale)
        if not math.isclose(given.item(), own, rel_tol=1e-6, abs_tol=1e-7):
            self.scale = given.exp().item()

    def extra_repr(self) -> str:
        return f"mode={self.mode!r}, slope={self.slope}, dim={self.dim}"
