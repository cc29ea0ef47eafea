"""Inputs for measuring the round-off of the geometry against mpmath, and the measurement of one of
them.

The inputs are rounded to the dtype first and the reference gets exactly those: nothing but the
arithmetic is measured. Points of the hyperboloid are given by their space parts, as the functions
read them: their time coordinate is passed as 0 here, and must not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from references import geometry_mpmath as reference

from hypvision.geometry import lorentz, maps, poincare

CURVATURES = (0.01, 0.1, 1.0, 10.0)
DIMENSIONS = (2, 16, 512)
RADII = {
    "lorentz": (1e-6, 1e-3, 0.05, 0.6, 1.0, 3.0, 6.0, 8.0, 10.0, 13.0, 16.0),
    "poincare": (1e-6, 1e-3, 0.05, 0.6, 1.0, 3.0, 6.0, 8.0, 10.0, 13.0, 16.0),
}
PAIRS = ("generic", "near", "ray", "antipodal", "axis")


class Operation(NamedTuple):
    """What is called, and with which arguments.

    ``x``, ``y`` are points, ``u`` a tangent vector at the origin, ``v`` one at ``x``, ``z`` any
    vector, ``p`` an ideal point; ``numbers`` follow them.
    """

    function: Callable
    exact: Callable
    arguments: str
    kinds: tuple[str, ...] = ("generic",)
    numbers: tuple[float, ...] = ()

    def furthest(self, model: str, kind: str, dtype: torch.dtype) -> float:
        """Radius to which arguments and result can be represented at all."""
        single = dtype == torch.float32
        name = self.exact.__name__
        if model == "poincare":
            # what is added lands beyond the last number below the boundary
            adds = "mobius" in name and (kind in ("generic", "antipodal") or "add" in name)
            return 6.0 if adds and single else math.inf
        if "boost" in name and single:
            return 17.0  # beyond, the result is at the cap
        if "v" in self.arguments:
            # The coordinates of a tangent vector at the radius r are cosh(r) times as long as its
            # perpendicular part: beyond, rounding alone makes them as long as the unit.
            return 17.0 if single else 25.0
        return math.inf


def _logits(function: Callable) -> Callable:
    return lambda x, *rest: function(
        x, *(r[None] if isinstance(r, torch.Tensor) else r for r in rest)
    ).squeeze(-1)


def _mean(function: Callable) -> Callable:
    def call(*args):
        *points, c = args
        weights = torch.arange(1, len(points) + 1, dtype=points[0].dtype)
        return function(torch.stack(points), weights, c)

    return call


def _plane(x, z, a, c):
    return lorentz.dist2plane(x, z, torch.tensor(a, dtype=x.dtype), c)


def _hyperplane(x, z, a, c):
    return lorentz.hyperplane_logits(x, z[None], torch.tensor([a], dtype=x.dtype), c).squeeze(-1)


def _unidirectional(x, z, r, c):
    return poincare.hyperplane_logits(x, z[None], torch.tensor([r], dtype=x.dtype), c).squeeze(-1)


MOVES = ("generic", "inward", "outward", "axis")
LORENTZ = {
    "dist": Operation(lorentz.dist, reference.lorentz_dist, "xy", PAIRS),
    "sqdist": Operation(lorentz.sqdist, reference.lorentz_sqdist, "xy", PAIRS),
    "dist0": Operation(lorentz.dist0, reference.lorentz_dist0, "x"),
    "expmap0": Operation(lorentz.expmap0, reference.lorentz_expmap0, "r"),
    "logmap0": Operation(lorentz.logmap0, reference.lorentz_logmap0, "x"),
    "expmap": Operation(lorentz.expmap, reference.lorentz_expmap, "xv", MOVES),
    "logmap": Operation(lorentz.logmap, reference.lorentz_logmap, "xy", PAIRS),
    "transp": Operation(lorentz.transp, reference.lorentz_transp, "xyv", PAIRS),
    "transp0": Operation(lorentz.transp0, reference.lorentz_transp0, "xu"),
    "transp0back": Operation(lorentz.transp0back, reference.lorentz_transp0back, "xv"),
    "norm": Operation(lorentz.norm, reference.lorentz_norm, "xv"),
    "boost": Operation(lorentz.boost, reference.lorentz_boost, "xy", PAIRS),
    "unboost": Operation(lorentz.unboost, reference.lorentz_unboost, "xy", PAIRS),
    "scalar_mul": Operation(
        lambda x, r, c: lorentz.scalar_mul(r, x, c),
        reference.lorentz_scalar_mul,
        "x",
        numbers=(0.75,),
    ),
    "centroid": Operation(_mean(lorentz.centroid), reference.lorentz_centroid, "xyw", PAIRS),
    "dist2plane": Operation(_plane, reference.lorentz_dist2plane, "xz", numbers=(0.375,)),
    "hyperplane_logits": Operation(
        _hyperplane,
        lambda c, x, z, a: reference.lorentz_dist2plane(c, x, z, a) * z.norm(),
        "xz",
        numbers=(0.375,),
    ),
    "busemann": Operation(lorentz.busemann, reference.lorentz_busemann, "xp"),
    "half_aperture": Operation(lorentz.half_aperture, reference.lorentz_half_aperture, "x"),
    "exterior_angle": Operation(
        lorentz.exterior_angle, reference.lorentz_exterior_angle, "xy", PAIRS
    ),
    "to_poincare": Operation(maps.lorentz_to_poincare, reference.lorentz_to_poincare, "x"),
    "to_klein": Operation(maps.lorentz_to_klein, reference.lorentz_to_klein, "x"),
}
POINCARE = {
    "dist": Operation(poincare.dist, reference.poincare_dist, "xy", PAIRS),
    "dist0": Operation(poincare.dist0, reference.poincare_dist0, "x"),
    "expmap0": Operation(poincare.expmap0, reference.poincare_expmap0, "r"),
    "logmap0": Operation(poincare.logmap0, reference.poincare_logmap0, "x"),
    "expmap": Operation(poincare.expmap, reference.poincare_expmap, "xv", MOVES),
    "logmap": Operation(poincare.logmap, reference.poincare_logmap, "xy", PAIRS),
    "transp": Operation(poincare.transp, reference.poincare_transp, "xyv", PAIRS),
    "transp0": Operation(poincare.transp0, reference.poincare_transp0, "xu"),
    "transp0back": Operation(poincare.transp0back, reference.poincare_transp0back, "xv"),
    "mobius_add": Operation(poincare.mobius_add, reference.poincare_mobius_add, "xy", PAIRS),
    "mobius_sub": Operation(poincare.mobius_sub, reference.poincare_mobius_sub, "xy", PAIRS),
    "mobius_scalar_mul": Operation(
        lambda x, r, c: poincare.mobius_scalar_mul(r, x, c),
        reference.poincare_scalar_mul,
        "x",
        numbers=(0.75,),
    ),
    "gyration": Operation(poincare.gyration, reference.poincare_gyration, "xyu", PAIRS),
    "midpoint": Operation(_mean(poincare.midpoint), reference.poincare_midpoint, "xyw", PAIRS),
    "dist2plane": Operation(poincare.dist2plane, reference.poincare_dist2plane, "xyz"),
    "ganea_logits": Operation(
        _logits(poincare.ganea_logits), reference.poincare_ganea_logit, "xyz"
    ),
    "hyperplane_logits": Operation(
        _unidirectional, reference.poincare_hyperplane_logit, "xz", numbers=(0.375,)
    ),
    "busemann": Operation(poincare.busemann, reference.poincare_busemann, "xp"),
    "half_aperture": Operation(poincare.half_aperture, reference.poincare_half_aperture, "x"),
    "exterior_angle": Operation(
        poincare.exterior_angle, reference.poincare_exterior_angle, "xy", PAIRS
    ),
    "to_lorentz": Operation(maps.poincare_to_lorentz, reference.poincare_to_lorentz, "x"),
    "to_klein": Operation(maps.poincare_to_klein, reference.poincare_to_klein, "x"),
}
OPERATIONS = {"lorentz": LORENTZ, "poincare": POINCARE}


# --------------------------------------------------------------------------------------------------
# Inputs


def _direction(rng: np.random.Generator, n: int) -> np.ndarray:
    v = rng.normal(size=n)
    return v / np.linalg.norm(v)


def _round(v: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.tensor(v).to(dtype).double().numpy()


def _point(
    model: str, radius: float, heading: np.ndarray, c: float, dtype: torch.dtype
) -> np.ndarray:
    size = math.sinh(radius) if model == "lorentz" else math.tanh(radius / 2)
    x = _round(heading * (size / math.sqrt(c)), dtype)
    if model == "poincare":  # rounding must not carry it over the boundary
        limit = 1 - 3 * torch.finfo(dtype).eps
        while (norm := np.linalg.norm(x) * math.sqrt(c)) > limit:
            x = _round(x * (limit / norm) * (1 - torch.finfo(dtype).eps), dtype)
    return x


def draw(
    model: str,
    names: str,
    kind: str,
    radius: float,
    c: float,
    n: int,
    dtype: torch.dtype,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Arguments of an operation, as doubles that the dtype holds. ``radius`` is that of ``x``,
    times sqrt(c)."""
    root, heading = math.sqrt(c), _direction(rng, n)
    if kind == "axis":  # rounding a coordinate does not turn such points
        heading = np.eye(n)[rng.integers(n)]
    x = _point(model, radius, heading, c, dtype)
    out = {"x": x}
    if kind == "near":
        out["y"], out["w"] = (
            _round(x + 1e-5 * np.linalg.norm(x) * _direction(rng, n), dtype) for _ in "yw"
        )
        if model == "poincare":
            shrink = min(1.0, 1 - 2e-5)
            out["y"], out["w"] = (_round(out[k] * shrink, dtype) for k in "yw")
    elif kind in ("ray", "axis"):
        out["y"], out["w"] = _round(x * 0.75, dtype), _round(x * 0.5, dtype)
    elif kind == "antipodal":
        out["y"], out["w"] = -x, _round(x * 0.5, dtype)
    else:
        out["y"], out["w"] = (
            _point(model, 0.8 * radius, _direction(rng, n), c, dtype) for _ in "yw"
        )
    # a tangent vector at the origin, and one at x of that length
    length = min(radius, 1.0) / root
    u = {
        "inward": -0.9 * radius / root * heading + 0.3 * length * _direction(rng, n),
        "axis": -0.9 * radius / root * heading,
        "outward": length * (heading + 0.3 * _direction(rng, n)),
    }.get(kind, length * _direction(rng, n))
    out["u"] = _round(u, dtype)
    along = c * (x @ u)
    if model == "lorentz":
        out["v"] = _round(u + x * (along / (1 + math.sqrt(1 + c * (x @ x)))), dtype)
    else:
        out["v"] = _round(u * ((1 - c * (x @ x)) / 2), dtype)
    out["r"] = _round(heading * (radius / root / (1 if model == "lorentz" else 2)), dtype)
    out["z"] = _round(rng.normal(size=n), dtype)
    out["p"] = _round(_direction(rng, n), dtype)
    return [out[name] for name in names]


# --------------------------------------------------------------------------------------------------
# Errors

EVENTS = "xyvw"  # given as time and space to the functions of the Lorentz model


class Error(NamedTuple):
    """Relative errors of a value and of the worst of its gradients."""

    value: float
    gradient: float


def _relative(got: np.ndarray | float, exact: np.ndarray | float, least: float = 0.0) -> float:
    if not np.all(np.isfinite(got)):
        return math.inf
    size = max(float(np.linalg.norm(exact)), least)
    apart = float(np.linalg.norm(np.asarray(got, dtype=np.float64) - exact))
    return apart / size if size else apart


# those that pass through 0 are measured against their typical size
SIGNED = {"dist2plane", "hyperplane_logits", "ganea_logits", "busemann"}


def measure(
    model: str,
    name: str,
    kind: str,
    radius: float,
    c: float,
    n: int,
    dtype: torch.dtype,
    rng,
    gradient: bool = True,
) -> Error:
    operation = OPERATIONS[model][name]
    vectors = draw(model, operation.arguments, kind, radius, c, n, dtype, rng)
    cotangent = (0.5, _round(rng.normal(size=n), dtype))
    exact = reference.evaluate(operation.exact, c, vectors, operation.numbers, cotangent, gradient)
    leaves = [torch.tensor(v).to(dtype).requires_grad_() for v in vectors]
    zero = torch.zeros(1, dtype=dtype)
    args = [
        torch.cat([zero, leaf]) if model == "lorentz" and letter in EVENTS else leaf
        for letter, leaf in zip(operation.arguments, leaves)
    ]
    out = operation.function(*args, *operation.numbers, c)
    assert out.dtype == dtype
    least = 0.0
    if name in SIGNED:
        least = (
            min(radius, 1.0)
            / math.sqrt(c)
            * (np.linalg.norm(vectors[-1]) if "logits" in name else 1)
        )
    error = _relative(out.detach().double().numpy(), exact.value, least)
    if not gradient:
        return Error(error, 0.0)
    loss = out
    if out.dim():
        weight = torch.tensor(cotangent[1]).to(dtype)
        loss = (out[..., -n:] * weight).sum()
        if out.shape[-1] > n:
            loss = loss + out[..., 0] * cotangent[0]
    gradients = [g.double().numpy() for g in torch.autograd.grad(loss, leaves)]
    if "p" in operation.arguments:  # the reference takes its direction alone
        gradients[-1] = gradients[-1] - vectors[-1] * (vectors[-1] @ gradients[-1]) / (
            vectors[-1] @ vectors[-1]
        )
    worst = max(_relative(g, e) for g, e in zip(gradients, exact.gradients))
    return Error(error, worst)


def noise(
    model: str, name: str, kind: str, radius: float, c: float, n: int, dtype: torch.dtype, rng
) -> float:
    """The relative change of the exact value when each coordinate of the arguments moves by half a
    unit of round-off: the largest of six draws of the signs. ``rng`` draws the arguments, as for
    :func:`measure`."""
    operation = OPERATIONS[model][name]
    vectors = draw(model, operation.arguments, kind, radius, c, n, dtype, rng)

    def value(given: list[np.ndarray]) -> np.ndarray | float:
        return reference.evaluate(
            operation.exact, c, given, operation.numbers, (0.5, np.zeros(n)), False
        ).value

    exact, unit, worst = value(vectors), torch.finfo(dtype).eps / 2, 0.0
    for seed in range(6):
        signs = np.random.default_rng(seed)
        moved = [v * (1 + unit * signs.choice([-1, 1], size=v.shape)) for v in vectors]
        if model == "poincare":  # rounding must not carry a point over the boundary
            moved = [np.where(np.linalg.norm(m) ** 2 * c < 1, m, v) for m, v in zip(moved, vectors)]
        worst = max(worst, _relative(value(moved), exact))
    return worst


def grid(model: str, name: str, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    operation = OPERATIONS[model][name]
    for kind in operation.kinds:
        for radius in RADII[model]:
            if radius <= operation.furthest(model, kind, dtype):
                yield kind, radius
