"""Round-off of the geometry beside that of geoopt, HypLL and MERU's forms: errors against mpmath over the radius.

References and inputs are those of the tests (``tests/geometry``): inputs are rounded to the dtype before the exact
result is computed, so that nothing but the arithmetic is measured. Functions of other libraries that want the time
coordinate of a point get it computed from the space part in their dtype, inside of what is differentiated, as their
users do.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import write_section
from torch import Tensor
from tqdm import tqdm

from hypvision.errors import HypvisionError, require
from hypvision.files import replacing
from hypvision.geometry import lorentz, poincare

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "geometry"))
from mp_reference import evaluate  # noqa: E402 - the tests are no package
from precision_cases import OPERATIONS, Operation, draw  # noqa: E402

MARKS = ("<!-- numerics:begin -->", "<!-- numerics:end -->")
RADII = {
    "lorentz": (1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 39.5),
    "ball": (1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0),
}
SHOWN = {"lorentz": (1e-6, 1e-2, 1.0, 6.0, 10.0, 17.0, 39.5), "ball": (1e-6, 1e-2, 1.0, 6.0, 10.0, 16.0)}
COLORS = {"hypvision": "#1f6feb", "geoopt": "#d1242f", "HypLL": "#bf8700", "MERU's form": "#8250df"}
MODELS = {"lorentz": "lorentz", "ball": "poincare"}  # as the tests call them
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Row(NamedTuple):
    """An operation of ``tests/geometry/precision_cases.py`` in several libraries, at curvature 1.

    The functions take the vectors as they are drawn there, space parts for the Lorentz model.
    """

    title: str
    model: str
    name: str
    kind: str
    functions: dict[str, Callable[..., Tensor]]

    @property
    def operation(self) -> Operation:
        return OPERATIONS[MODELS[self.model]][self.name]

    def radii(self, dtype: torch.dtype) -> list[float]:
        """Those at which arguments and result can be represented."""
        furthest = self.operation.furthest(MODELS[self.model], self.kind, dtype)
        return [radius for radius in RADII[self.model] if radius <= furthest]


def _event(space: Tensor) -> Tensor:
    return torch.cat([torch.sqrt(1 + (space * space).sum(-1, keepdim=True)), space], -1)


def _tangent(x: Tensor, v: Tensor) -> Tensor:
    """The tangent vector at the event ``x`` with the space part ``v``."""
    return torch.cat([(x[..., 1:] * v).sum(-1, keepdim=True) / x[..., :1], v], -1)


def _meru_dist(x: Tensor, y: Tensor) -> Tensor:
    x, y = _event(x), _event(y)
    inner = (x[1:] * y[1:]).sum(-1) - x[0] * y[0]
    return torch.acosh(torch.clamp(-inner, min=1 + 1e-8))


def _meru_exp0(u: Tensor) -> Tensor:
    length = u.norm(dim=-1, keepdim=True)
    return _event(torch.sinh(length.clamp(min=1e-8, max=math.asinh(2**15))) * u / length.clamp(min=1e-8))


def _meru_log0(x: Tensor) -> Tensor:
    event = _event(x)
    distance = torch.acosh(torch.clamp(event[:1], min=1 + 1e-8))
    return distance * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8)


def _meru_angle(x: Tensor, y: Tensor) -> Tensor:
    x, y = _event(x), _event(y)
    inner = (x[1:] * y[1:]).sum(-1) - x[0] * y[0]
    top = y[0] + inner * x[0]
    bottom = torch.sqrt(torch.clamp(inner**2 - 1, min=1e-8))
    return torch.acos(torch.clamp(top / (x[1:].norm() * bottom + 1e-8), min=-1 + 1e-8, max=1 - 1e-8))


def _rows() -> list[Row]:
    for module in ("geoopt", "hypll", "mpmath"):
        require(module, "dev")
    import geoopt
    from hypll.manifolds.poincare_ball.math import diffgeom

    flat, ball = geoopt.Lorentz(), geoopt.PoincareBall()
    one = torch.tensor(1.0)

    def c(x: Tensor) -> Tensor:
        return one.to(x.dtype)

    def lorentzian(function: Callable, events: str, arguments: str) -> Callable[..., Tensor]:
        """Ours take points with any time: it is computed anew."""

        def call(*vectors: Tensor) -> Tensor:
            zero = [torch.cat([torch.zeros_like(v[:1]), v]) if a in events else v for a, v in zip(arguments, vectors)]
            return function(*zero, 1.0)

        return call

    def ours(function: Callable) -> Callable[..., Tensor]:
        return lambda *vectors: function(*vectors, 1.0)

    rows = []
    for kind in ("generic", "near"):
        title = "" if kind == "generic" else ", near points"
        rows.append(
            Row(
                f"dist{title}",
                "lorentz",
                "dist",
                kind,
                {
                    "hypvision": lorentzian(lorentz.dist, "xy", "xy"),
                    "geoopt": lambda x, y: flat.dist(_event(x), _event(y)),
                    "MERU's form": _meru_dist,
                },
            )
        )
    rows += [
        Row(
            "dist0",
            "lorentz",
            "dist0",
            "generic",
            {
                "hypvision": lorentzian(lorentz.dist0, "x", "x"),
                "geoopt": lambda x: flat.dist0(_event(x)),
            },
        ),
        Row(
            "expmap0",
            "lorentz",
            "expmap0",
            "generic",
            {
                "hypvision": ours(lorentz.expmap0),
                "geoopt": lambda u: flat.expmap0(torch.cat([torch.zeros_like(u[:1]), u])),
                "MERU's form": _meru_exp0,
            },
        ),
        Row(
            "logmap0",
            "lorentz",
            "logmap0",
            "generic",
            {
                "hypvision": lorentzian(lorentz.logmap0, "x", "x"),
                "geoopt": lambda x: flat.logmap0(_event(x))[1:],
                "MERU's form": _meru_log0,
            },
        ),
        Row(
            "expmap",
            "lorentz",
            "expmap",
            "generic",
            {
                "hypvision": lorentzian(lorentz.expmap, "xv", "xv"),
                "geoopt": lambda x, v: flat.expmap(_event(x), _tangent(_event(x), v)),
            },
        ),
        Row(
            "logmap",
            "lorentz",
            "logmap",
            "generic",
            {
                "hypvision": lorentzian(lorentz.logmap, "xy", "xy"),
                "geoopt": lambda x, y: flat.logmap(_event(x), _event(y)),
            },
        ),
        Row(
            "parallel transport",
            "lorentz",
            "transp",
            "generic",
            {
                "hypvision": lorentzian(lorentz.transp, "xyv", "xyv"),
                "geoopt": lambda x, y, v: flat.transp(_event(x), _event(y), _tangent(_event(x), v)),
            },
        ),
        Row(
            "exterior angle",
            "lorentz",
            "exterior_angle",
            "generic",
            {"hypvision": lorentzian(lorentz.exterior_angle, "xy", "xy"), "MERU's form": _meru_angle},
        ),
        Row(
            "exterior angle, near points",
            "lorentz",
            "exterior_angle",
            "near",
            {"hypvision": lorentzian(lorentz.exterior_angle, "xy", "xy"), "MERU's form": _meru_angle},
        ),
    ]
    for kind in ("generic", "near"):
        title = "" if kind == "generic" else ", near points"
        rows.append(
            Row(
                f"dist{title}",
                "ball",
                "dist",
                kind,
                {
                    "hypvision": ours(poincare.dist),
                    "geoopt": ball.dist,
                    "HypLL": lambda x, y: diffgeom.dist(x, y, c(x)),
                },
            )
        )
    rows += [
        Row(
            "expmap0",
            "ball",
            "expmap0",
            "generic",
            {
                "hypvision": ours(poincare.expmap0),
                "geoopt": ball.expmap0,
                "HypLL": lambda u: diffgeom.expmap0(u, c(u)),
            },
        ),
        Row(
            "logmap0",
            "ball",
            "logmap0",
            "generic",
            {
                "hypvision": ours(poincare.logmap0),
                "geoopt": ball.logmap0,
                "HypLL": lambda x: diffgeom.logmap0(x, c(x)),
            },
        ),
        Row(
            "expmap",
            "ball",
            "expmap",
            "generic",
            {
                "hypvision": ours(poincare.expmap),
                "geoopt": ball.expmap,
                "HypLL": lambda x, v: diffgeom.expmap(x, v, c(x)),
            },
        ),
        Row(
            "logmap",
            "ball",
            "logmap",
            "generic",
            {
                "hypvision": ours(poincare.logmap),
                "geoopt": ball.logmap,
                "HypLL": lambda x, y: diffgeom.logmap(x, y, c(x)),
            },
        ),
        Row(
            "parallel transport",
            "ball",
            "transp",
            "generic",
            {
                "hypvision": ours(poincare.transp),
                "geoopt": ball.transp,
                "HypLL": lambda x, y, v: diffgeom.transp(x, y, v, c(x)),
            },
        ),
        Row(
            "Moebius addition",
            "ball",
            "mobius_add",
            "generic",
            {
                "hypvision": ours(poincare.mobius_add),
                "geoopt": ball.mobius_add,
                "HypLL": lambda x, y: diffgeom.mobius_add(x, y, c(x)),
            },
        ),
    ]
    return rows


class Error(NamedTuple):
    """Relative errors; infinite where a result is not finite."""

    value: float
    gradient: float


def _relative(got: np.ndarray, exact: np.ndarray | float) -> float:
    if not np.all(np.isfinite(got)):
        return math.inf
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(np.asarray(got, dtype=np.float64) - exact)) / size if size else 0.0


def measure(row: Row, radius: float, dim: int, dtype: torch.dtype, seed: int) -> dict[str, Error]:
    """Errors of all libraries for one random input."""
    rng = np.random.default_rng([seed, round(1e6 * radius), dim])
    operation = row.operation
    vectors = draw(MODELS[row.model], operation.arguments, row.kind, radius, 1.0, dim, dtype, rng)
    cotangent = (0.5, torch.tensor(rng.normal(size=dim)).to(dtype).double().numpy())
    exact = evaluate(operation.exact, 1.0, vectors, (), cotangent, True)
    found = {}
    for library, function in row.functions.items():
        leaves = [torch.tensor(v).to(dtype).requires_grad_() for v in vectors]
        out = function(*leaves)
        loss = out
        if out.dim() and out.numel() > 1:
            loss = (out[..., -dim:] * torch.tensor(cotangent[1]).to(dtype)).sum()
            if out.shape[-1] > dim:
                loss = loss + out[..., 0] * cotangent[0]
        gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
        worst = max(
            math.inf if g is None else _relative(g.double().numpy(), e) for g, e in zip(gradients, exact.gradients)
        )
        value = out.detach().double().numpy()
        found[library] = Error(_relative(value.reshape(np.shape(exact.value)), exact.value), worst)
    return found


Curves = dict[tuple[str, str], dict[str, dict[float, Error]]]


def curves(rows: list[Row], dim: int, dtype: torch.dtype, seeds: int, bar: tqdm) -> Curves:
    """Medians over the seeds, by operation, library and radius."""
    found: Curves = {}
    for row in rows:
        of_row = found.setdefault((row.model, row.title), {library: {} for library in row.functions})
        for radius in row.radii(dtype):
            results = [measure(row, radius, dim, dtype, seed) for seed in range(seeds)]
            for library in row.functions:
                values, gradients = zip(*(result[library] for result in results))
                of_row[library][radius] = Error(statistics.median(values), statistics.median(gradients))
            bar.update()
    return found


def plot(found: Curves, dtype: str, what: str, path: Path) -> None:
    """One panel an operation: relative error over the radius, both logarithmic. Errors beyond 1 stand at the top."""
    require("matplotlib", "viz")
    import matplotlib.pyplot as plt
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401 - no display needed

    columns = 5
    lines = -(-len(found) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.1 * columns, 2.5 * lines), sharey=True, squeeze=False)
    eps = torch.finfo(DTYPES[dtype]).eps
    for axis, ((model, title), libraries) in zip(axes.flat, found.items()):
        for library, errors in libraries.items():
            radii = list(errors)
            heights = [min(max(getattr(errors[r], what), eps / 20), 3.0) for r in radii]
            axis.loglog(radii, heights, ".-", color=COLORS[library], label=library, lw=1.2, ms=4)
        axis.axhline(eps, color="0.6", lw=0.8, ls=":")
        axis.set_title(f"{'Lorentz' if model == 'lorentz' else 'ball'}: {title}", fontsize=9)
        axis.set_ylim(eps / 30, 5)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25, lw=0.5)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("radius", fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("relative error", fontsize=8)
    handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="lower right", fontsize=9, ncols=len(handles))
    figure.suptitle(f"{dtype}, {what}s (dotted: round-off)", fontsize=11)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)
    plt.close(figure)


def table(found: Curves, what: str) -> str:
    """Errors at a few radii."""
    lines = []
    for model, radii in SHOWN.items():
        lines += [
            "",
            f"| {'Lorentz model' if model == 'lorentz' else 'Poincare ball'}, radius | | "
            + " | ".join(f"{r:g}" for r in radii)
            + " |",
            "|---|---|" + "--:|" * len(radii),
        ]
        for (kind, title), libraries in found.items():
            if kind != model:
                continue
            for i, (library, errors) in enumerate(libraries.items()):
                cells = [_short(getattr(errors[r], what)) if r in errors else "" for r in radii]
                lines.append(f"| {'' if i else title} | {library} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def _short(error: float) -> str:
    return "not finite" if math.isinf(error) else f"{error:.0e}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dim", type=int, default=16, help="dimension of the space (default: 16)")
    parser.add_argument("--seeds", type=int, default=7, help="random inputs a point of a curve (default: 7)")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write tables here, pictures into images/numerics")


def run(args: argparse.Namespace) -> None:
    for name in ("dim", "seeds"):
        if (value := getattr(args, name)) < (2 if name == "dim" else 1):
            raise HypvisionError(f"--{name} is too small: {value}.")
    rows = _rows()
    steps = sum(len(row.radii(dtype)) for row in rows for dtype in DTYPES.values())
    with tqdm(total=steps, desc="numerics", unit="point", disable=None) as bar:
        found = {name: curves(rows, args.dim, dtype, args.seeds, bar) for name, dtype in DTYPES.items()}
    versions = ", ".join(f"{name} {version(name)}" for name in ("hypvision", "geoopt", "hypll", "torch"))
    parts = [
        f"`tools/benchmark.py numerics --dim {args.dim} --seeds {args.seeds}`\n\n{versions}. Medians of {args.seeds} "
        f"random inputs in {args.dim} dimensions, curvature 1; near points are 1e-5 of their radius apart."
    ]
    for what in ("value", "gradient"):
        parts.append(f"### float32, {what}s\n\n{{{what}}}{table(found['float32'], what)}")
    text = "\n\n".join(parts)
    pictures = {("float32", "value"), ("float32", "gradient"), ("float64", "value")}
    if args.write:
        folder = args.write.parent / "images" / "numerics"
        for dtype, what in sorted(pictures):
            plot(found[dtype], dtype, what, folder / f"{dtype}_{what}.png")
        for what in ("value", "gradient"):
            picture = f"![Errors of {what}s over the radius, float32](images/numerics/float32_{what}.png)\n\n"
            text = text.replace(f"{{{what}}}", picture)
        text += "\n\n### float64\n\n![Errors of values over the radius, float64](images/numerics/float64_value.png)"
        write_section(args.write, MARKS, text, f"\n## Round-off\n\n{MARKS[0]}\n{MARKS[1]}\n")
    print(text.replace("{value}", "").replace("{gradient}", ""))
