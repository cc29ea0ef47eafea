"""Every op of the geometry, row by row and at three sizes, beside the same op of geoopt and HypLL.

Contenders of an op are called in turns in one process; medians count. What is reported is the ratio
of ours to the faster of the two libraries, and whether it reaches its target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.geometry import lorentz, poincare

try:
    import geoopt
except ImportError:
    geoopt = None
try:
    from hypll.manifolds.poincare_ball.math import diffgeom as hypll
except ImportError:
    hypll = None

SIZES = ((32, 16), (4096, 64), (65536, 64))
SMALL = SIZES[0]
LARGE = SIZES[-1]


class Op(NamedTuple):
    """Ours, which takes the arguments and ``c``; the others', which take the arguments alone.

    ``arguments`` are ``x``, ``y`` (points), ``u`` (a tangent vector at the origin) and ``v`` (one
    at ``x``). ``large`` and ``small`` are the targets at the largest and the smallest size;
    ``radius`` is about that of the points.
    """

    model: str
    ours: Callable[..., Tensor]
    arguments: str
    geoopt: str | None
    hypll: Callable[..., Tensor] | None = None
    large: tuple[float, float] | None = None
    small: float = 2.0
    radius: float = 1.0


def _hypll(name: str, **options) -> Callable[..., Tensor] | None:
    return partial(getattr(hypll, name), c=torch.tensor(1.0), dim=-1, **options) if hypll else None


OPS = {
    "dist": Op("lorentz", lorentz.dist, "xy", "dist", large=(4.0, 4.0), small=3.0),
    "logmap": Op("lorentz", lorentz.logmap, "xy", "logmap", large=(2.0, 2.0)),
    "transp": Op("lorentz", lorentz.transp, "xyv", "transp", large=(2.0, 2.0)),
    "expmap": Op("lorentz", lorentz.expmap, "xv", "expmap", large=(2.0, 2.0)),
    "expmap0": Op("lorentz", lorentz.expmap0, "u", "expmap0", large=(2.0, 2.0)),
    "logmap0": Op("lorentz", lorentz.logmap0, "x", "logmap0", large=(2.0, 2.0)),
    "dist0": Op("lorentz", lorentz.dist0, "x", "dist0", large=(2.0, 2.0)),
    "projx": Op("lorentz", lorentz.projx, "x", "projx"),
    "proju": Op("lorentz", lorentz.proju, "xv", "proju"),
    "transp0": Op("lorentz", lorentz.transp0, "xu", "transp0"),
    "transp0back": Op("lorentz", lorentz.transp0back, "xv", "transp0back"),
    "ball dist": Op(
        "ball", poincare.dist, "xy", "dist", lambda x, y: _hypll("dist")(x=x, y=y), large=(2.0, 2.0)
    ),
    "ball logmap": Op(
        "ball",
        poincare.logmap,
        "xy",
        "logmap",
        lambda x, y: _hypll("logmap")(x=x, y=y),
        large=(2.0, 2.0),
    ),
    "ball expmap": Op(
        "ball", poincare.expmap, "xv", "expmap", lambda x, v: _hypll("expmap")(x=x, v=v)
    ),
    "ball expmap0": Op(
        "ball", poincare.expmap0, "u", "expmap0", lambda u: _hypll("expmap0")(v=u), large=(2.0, 2.0)
    ),
    "ball logmap0": Op(
        "ball", poincare.logmap0, "x", "logmap0", lambda x: _hypll("logmap0")(y=x), large=(2.0, 2.0)
    ),
    "ball dist0": Op("ball", poincare.dist0, "x", "dist0", large=(2.0, 2.0)),
    "mobius_add": Op(
        "ball",
        poincare.mobius_add,
        "xy",
        "mobius_add",
        lambda x, y: _hypll("mobius_add")(x=x, y=y),
        large=(2.0, 2.0),
    ),
    "ball transp": Op("ball", poincare.transp, "xyv", "transp"),
    "ball project": Op("ball", poincare.project, "x", "projx", lambda x: _hypll("project")(x=x)),
}


def _draw(op: Op, library: str, size: tuple[int, int], device: str) -> list[Tensor]:
    """Arguments as the library wants them: geoopt's tangent vectors at the origin have a time,
    which is 0."""
    generator = torch.Generator().manual_seed(0)
    scale = op.radius * size[1] ** -0.5
    u, w, s = (torch.randn(size, generator=generator).mul_(scale).to(device) for _ in range(3))
    if op.model == "ball":
        points = {"x": poincare.expmap0(u / 2, 1.0), "y": poincare.expmap0(w / 2, 1.0), "u": s / 2}
        points["v"] = poincare.transp0(points["x"], s / 2, 1.0)
    else:
        points = {"x": lorentz.expmap0(u, 1.0), "y": lorentz.expmap0(w, 1.0)}
        points["u"] = torch.nn.functional.pad(s, (1, 0)) if library == "geoopt" else s
        points["v"] = lorentz.transp0(points["x"], s, 1.0)
    return [points[name].detach().clone().requires_grad_() for name in op.arguments]


def contenders(
    op: Op, size: tuple[int, int], device: str
) -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Functions and their arguments by library, ours first."""
    found = {"hypvision": (partial(_ours, op.ours), _draw(op, "hypvision", size, device))}
    if geoopt and op.geoopt:
        manifold = (geoopt.Lorentz() if op.model == "lorentz" else geoopt.PoincareBall()).to(device)
        found["geoopt"] = getattr(manifold, op.geoopt), _draw(op, "geoopt", size, device)
    if hypll and op.hypll:
        found["HypLL"] = op.hypll, _draw(op, "HypLL", size, device)
    return found


def _ours(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    return function(*arguments, 1.0)


def target(op: Op, size: tuple[int, int]) -> tuple[float | None, float | None]:
    """Of forward, and of forward and backward."""
    if size == SMALL:
        return op.small, op.small
    return op.large if size == LARGE and op.large else (None, None)


def compiled_targets(name: str) -> dict[str, float]:
    """Largest ratios of our compiled form to geoopt's compiled and eager ones."""
    return {"compiled": 2.0, "eager": 1.1} if name == "dist" else {"compiled": 1.3}


COMPILED = [name for name, op in OPS.items() if op.large and op.model == "lorentz"]
