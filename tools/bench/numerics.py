"""Round-off of the geometry beside that of geoopt, HypLL and MERU's forms: errors against mpmath
over the radius.

References and inputs are those of the tests (``tests/geometry``): inputs are rounded to the dtype
before the exact result is computed, so that nothing but the arithmetic is measured. Functions of
other libraries that want the time coordinate of a point get it computed from the space part in
their dtype, inside of what is differentiated, as their users do.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from bench.common import write_section
from hypvision.io.errors import HypvisionError, require
from hypvision.io.files import replacing

ROOT = Path(__file__).parents[2]
from references.geometry_cases import EVENTS, OPERATIONS, SIGNED, Operation, draw, noise  # noqa: E402
from references.geometry_mpmath import evaluate  # noqa: E402 - the tests are no package

MARKS = ("<!-- numerics:begin -->", "<!-- numerics:end -->")
RADII = {
    "lorentz": (1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0),
    "ball": (1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0),
}
SHOWN = dict.fromkeys(("lorentz", "ball"), (1e-6, 1e-2, 1.0, 6.0, 8.0, 13.0, 16.0))
COLORS = {
    "hypvision": "#1f6feb",
    "geoopt": "#d1242f",
    "HypLL": "#bf8700",
    "MERU's form": "#8250df",
    "textbook": "#57606a",
    "noise": "#8c959f",
}
# What rounding the arguments does to the exact value: no formula of float32 points can know it
# better.
NOISE = "noise"
# how many times that an error of ours may be
FACTOR = 3.0
MODELS = {"lorentz": "lorentz", "ball": "poincare"}  # as the tests call them
HEADINGS = {"lorentz": "Lorentz model", "ball": "Poincare ball"}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
VERSIONS = {"hypvision": "hypvision", "geoopt": "geoopt", "HypLL": "hypll", "PyTorch": "torch"}
HALVES = (torch.bfloat16, torch.float16)
KINDS = {
    "generic": "random directions",
    "near": "near points",
    "ray": "one ray",
    "antipodal": "opposite points",
}

# Operations of ``tests/references/geometry_cases.py`` and what they are called here: those of pairs
# of points, in all kinds of pairs, and those of one point.
PAIRS = {
    "lorentz": {
        "dist": "dist",
        "logmap": "logmap",
        "transp": "parallel transport",
        "exterior_angle": "exterior angle",
        "centroid": "centroid of three",
    },
    "ball": {
        "dist": "dist",
        "logmap": "logmap",
        "transp": "parallel transport",
        "midpoint": "midpoint of three",
    },
}
SINGLES = {
    "lorentz": {
        "dist0": "dist0",
        "expmap0": "expmap0",
        "logmap0": "logmap0",
        "expmap": "expmap",
        "transp0": "transp0",
        "transp0back": "transp0back",
        "hyperplane_logits": "hyperplane logits",
    },
    "ball": {
        "dist0": "dist0",
        "expmap0": "expmap0",
        "logmap0": "logmap0",
        "expmap": "expmap",
        "transp0": "transp0",
        "transp0back": "transp0back",
        "mobius_add": "Moebius addition",
        "dist2plane": "distance to a hyperplane",
        "hyperplane_logits": "hyperplane logits (HNN++)",
    },
}


class Row(NamedTuple):
    """An operation of ``tests/references/geometry_cases.py`` in several libraries, at curvature 1.

    The functions take the vectors as they are drawn there, space parts for the Lorentz model, and
    the operation's numbers.
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
        if dtype not in HALVES:
            furthest = self.operation.furthest(MODELS[self.model], self.kind, dtype)
            return [radius for radius in RADII[self.model] if radius <= furthest]
        if self.kind == "near":  # no number lies between the points
            return []
        least = (
            1e-2 if dtype == torch.float16 else 0.0
        )  # below, distances or gradients are no normal numbers
        return [
            radius for radius in RADII[self.model] if least <= radius <= self._furthest_half(dtype)
        ]

    def _furthest_half(self, dtype: torch.dtype) -> float:
        brain = dtype == torch.bfloat16
        if self.model == "ball":
            if self.name == "mobius_add":  # lands beyond the last number below the boundary
                return 1.0 if brain else 2.0
            return 4.0 if brain else 6.0
        if self.name == "expmap":
            return 2.0 if brain else 4.0
        if self.name == "logmap" and not brain:  # as long as the distance times its cosh
            return 6.0
        if (
            "v" in self.operation.arguments
        ):  # as in single: beyond, rounding makes the vectors as long as the unit
            return 4.0 if brain else 6.0
        return 16.0 if brain else 10.0  # the largest number

    def has_gradient(self) -> bool:
        """Angles have a kink on rays."""
        return not (self.name == "exterior_angle" and self.kind in ("ray", "antipodal"))


def _event(space: Tensor) -> Tensor:
    return torch.cat([torch.sqrt(1 + (space * space).sum(-1, keepdim=True)), space], -1)


def _tangent(x: Tensor, v: Tensor) -> Tensor:
    """The tangent vector at the event ``x`` with the space part ``v``."""
    return torch.cat([(x[..., 1:] * v).sum(-1, keepdim=True) / x[..., :1], v], -1)


def _at_origin(u: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(u[:1]), u])


def _meru_dist(x: Tensor, y: Tensor) -> Tensor:
    x = _event(x)
    y = _event(y)
    inner = (x[1:] * y[1:]).sum(-1) - x[0] * y[0]
    return torch.acosh(torch.clamp(-inner, min=1 + 1e-8))


def _meru_exp0(u: Tensor) -> Tensor:
    length = u.norm(dim=-1, keepdim=True)
    return _event(
        torch.sinh(length.clamp(min=1e-8, max=math.asinh(2**15))) * u / length.clamp(min=1e-8)
    )


def _meru_log0(x: Tensor) -> Tensor:
    event = _event(x)
    distance = torch.acosh(torch.clamp(event[:1], min=1 + 1e-8))
    return distance * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8)


def _meru_angle(x: Tensor, y: Tensor) -> Tensor:
    x = _event(x)
    y = _event(y)
    inner = (x[1:] * y[1:]).sum(-1) - x[0] * y[0]
    top = y[0] + inner * x[0]
    bottom = torch.sqrt(torch.clamp(inner**2 - 1, min=1e-8))
    return torch.acos(
        torch.clamp(top / (x[1:].norm() * bottom + 1e-8), min=-1 + 1e-8, max=1 - 1e-8)
    )


def _textbook_centroid(*points: Tensor) -> Tensor:
    """Law et al., ICML 2019, as it is printed."""
    mean = sum((i + 1) * _event(p) for i, p in enumerate(points))
    return mean / torch.sqrt(mean[0] * mean[0] - (mean[1:] * mean[1:]).sum())


def _textbook_plane(x: Tensor, z: Tensor, a: float) -> Tensor:
    """Bdeir et al., ICLR 2024, eq. 11, without its sign and absolute value."""
    event = _event(x)
    size = z.norm()
    return size * torch.asinh(
        (math.cosh(a) * (event[1:] * z).sum() - math.sinh(a) * size * event[0]) / size
    )


def _ours(model: str, operation: Operation) -> Callable[..., Tensor]:
    """Ours take points with any time: it is computed anew."""

    def call(*arguments: Tensor) -> Tensor:
        arguments = [
            _at_origin(v) if model == "lorentz" and name in EVENTS else v
            for v, name in zip(arguments, operation.arguments)
        ]
        return operation.function(*arguments, *operation.numbers, 1.0)

    return call


def _peers() -> dict[tuple[str, str], dict[str, Callable[..., Tensor]]]:
    """The same operations elsewhere, by model and name."""
    for module in ("geoopt", "hypll", "mpmath"):
        require(module, "dev")
    import geoopt
    from hypll.manifolds.poincare_ball.math import diffgeom, linalg, stats

    flat = geoopt.Lorentz()
    ball = geoopt.PoincareBall()

    def c(x: Tensor) -> Tensor:
        return torch.ones((), dtype=x.dtype)

    def weights(points: tuple[Tensor, ...]) -> Tensor:
        return torch.arange(1, len(points) + 1, dtype=points[0].dtype)

    def planes(x: Tensor, z: Tensor, r: float) -> Tensor:
        offset = torch.tensor([r], dtype=x.dtype)
        return linalg.poincare_hyperplane_dists(x[None], z[:, None], offset, c(x)).squeeze()

    return {
        ("lorentz", "dist"): {
            "geoopt": lambda x, y: flat.dist(_event(x), _event(y)),
            "MERU's form": _meru_dist,
        },
        ("lorentz", "logmap"): {"geoopt": lambda x, y: flat.logmap(_event(x), _event(y))},
        ("lorentz", "transp"): {
            "geoopt": lambda x, y, v: flat.transp(_event(x), _event(y), _tangent(_event(x), v)),
        },
        ("lorentz", "exterior_angle"): {"MERU's form": _meru_angle},
        ("lorentz", "centroid"): {"textbook": _textbook_centroid},
        ("lorentz", "dist0"): {"geoopt": lambda x: flat.dist0(_event(x))},
        ("lorentz", "expmap0"): {
            "geoopt": lambda u: flat.expmap0(_at_origin(u)),
            "MERU's form": _meru_exp0,
        },
        ("lorentz", "logmap0"): {
            "geoopt": lambda x: flat.logmap0(_event(x))[1:],
            "MERU's form": _meru_log0,
        },
        ("lorentz", "expmap"): {
            "geoopt": lambda x, v: flat.expmap(_event(x), _tangent(_event(x), v))
        },
        ("lorentz", "transp0"): {"geoopt": lambda x, u: flat.transp0(_event(x), _at_origin(u))},
        ("lorentz", "transp0back"): {
            "geoopt": lambda x, v: flat.transp0back(_event(x), _tangent(_event(x), v))[1:],
        },
        ("lorentz", "hyperplane_logits"): {"textbook": _textbook_plane},
        ("ball", "dist"): {"geoopt": ball.dist, "HypLL": lambda x, y: diffgeom.dist(x, y, c(x))},
        ("ball", "logmap"): {
            "geoopt": ball.logmap,
            "HypLL": lambda x, y: diffgeom.logmap(x, y, c(x)),
        },
        ("ball", "transp"): {
            "geoopt": ball.transp,
            "HypLL": lambda x, y, v: diffgeom.transp(x, y, v, c(x)),
        },
        ("ball", "midpoint"): {
            "geoopt": lambda *p: ball.weighted_midpoint(torch.stack(p), weights(p), reducedim=[0]),
            "HypLL": lambda *p: stats.midpoint(torch.stack(p), c(p[0]), w=weights(p)[:, None]),
        },
        ("ball", "dist0"): {
            "geoopt": ball.dist0,
            "HypLL": lambda x: diffgeom.dist(torch.zeros_like(x), x, c(x)),
        },
        ("ball", "expmap0"): {"geoopt": ball.expmap0, "HypLL": lambda u: diffgeom.expmap0(u, c(u))},
        ("ball", "logmap0"): {"geoopt": ball.logmap0, "HypLL": lambda x: diffgeom.logmap0(x, c(x))},
        ("ball", "expmap"): {
            "geoopt": ball.expmap,
            "HypLL": lambda x, v: diffgeom.expmap(x, v, c(x)),
        },
        ("ball", "transp0"): {
            "geoopt": ball.transp0,
            "HypLL": lambda x, u: diffgeom.transp(torch.zeros_like(x), x, u, c(x)),
        },
        ("ball", "transp0back"): {
            "geoopt": ball.transp0back,
            "HypLL": lambda x, v: diffgeom.transp(x, torch.zeros_like(x), v, c(x)),
        },
        ("ball", "mobius_add"): {
            "geoopt": ball.mobius_add,
            "HypLL": lambda x, y: diffgeom.mobius_add(x, y, c(x)),
        },
        ("ball", "dist2plane"): {"geoopt": lambda x, p, a: ball.dist2plane(x, p, a, signed=True)},
        ("ball", "hyperplane_logits"): {"HypLL": planes},
    }


def all_rows() -> list[Row]:
    peers = _peers()
    rows = []
    for model, tested in MODELS.items():
        for names, kinds in ((PAIRS[model], KINDS), (SINGLES[model], ("generic",))):
            for name, title in names.items():
                functions = {
                    "hypvision": _ours(model, OPERATIONS[tested][name]),
                    **peers[model, name],
                }
                rows += [Row(title, model, name, kind, functions) for kind in kinds]
    return rows


class Error(NamedTuple):
    """Relative errors: infinite where a result is not finite, not a number where there is nothing
    to compare."""

    value: float
    gradient: float


def _relative(got: np.ndarray, exact: np.ndarray | float, least: float = 0.0) -> float:
    if not np.all(np.isfinite(got)):
        return math.inf
    size = max(float(np.linalg.norm(exact)), least)
    return float(np.linalg.norm(np.asarray(got, dtype=np.float64) - exact)) / size if size else 0.0


def measure(row: Row, radius: float, dim: int, dtype: torch.dtype, seed: int) -> dict[str, Error]:
    """Errors of all libraries for one random input; half types under autocast."""
    rng = np.random.default_rng([seed, round(1e6 * radius), dim])
    operation = row.operation
    vectors = draw(MODELS[row.model], operation.arguments, row.kind, radius, 1.0, dim, dtype, rng)
    cotangent = (0.5, torch.tensor(rng.normal(size=dim)).to(dtype).double().numpy())
    exact = evaluate(
        operation.exact, 1.0, vectors, operation.numbers, cotangent, row.has_gradient()
    )
    # what passes through 0 is measured against its typical size
    least = (
        min(radius, 1.0) * (np.linalg.norm(vectors[-1]) if "logits" in row.name else 1)
        if row.name in SIGNED
        else 0
    )
    found = {}
    for library, function in row.functions.items():
        leaves = [torch.tensor(v).to(dtype).requires_grad_() for v in vectors]
        numbers = () if library == "hypvision" else operation.numbers
        try:
            with (
                torch.autocast("cpu", dtype=dtype) if dtype in HALVES else contextlib.nullcontext()
            ):
                out = function(*leaves, *numbers)
        except (KeyError, RuntimeError):  # it does not take this dtype
            found[library] = Error(math.nan, math.nan)
            continue
        value = out.detach().double().numpy()
        worst = math.nan
        if row.has_gradient():
            loss = out
            if out.dim() and out.numel() > 1:
                loss = (out[..., -dim:] * torch.tensor(cotangent[1]).to(dtype)).sum()
                if out.shape[-1] > dim:
                    loss = loss + out[..., 0] * cotangent[0]
            gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
            worst = max(
                math.inf if g is None else _relative(g.double().numpy(), e)
                for g, e in zip(gradients, exact.gradients)
            )
        found[library] = Error(
            _relative(value.reshape(np.shape(exact.value)), exact.value, least), worst
        )
    if dtype not in HALVES:
        again = np.random.default_rng([seed, round(1e6 * radius), dim])
        moved = noise(MODELS[row.model], row.name, row.kind, radius, 1.0, dim, dtype, again)
        found[NOISE] = Error(moved, math.nan)
    return found


Curves = dict[tuple[str, str, str], dict[str, dict[float, Error]]]


def curves(rows: list[Row], dim: int, dtype: torch.dtype, seeds: int, bar: tqdm) -> Curves:
    """Medians over the seeds, by model, operation and kind, library and radius."""
    found: Curves = {}
    for row in rows:
        if not row.radii(dtype):
            continue
        libraries = [*row.functions, *([] if dtype in HALVES else [NOISE])]
        of_row = found.setdefault(
            (row.model, row.title, row.kind), {library: {} for library in libraries}
        )
        for radius in row.radii(dtype):
            results = [measure(row, radius, dim, dtype, seed) for seed in range(seeds)]
            for library in libraries:
                values, gradients = zip(*(result[library] for result in results))
                of_row[library][radius] = Error(
                    statistics.median(values), statistics.median(gradients)
                )
            bar.update()
    return found


def plot(curves: Curves, model: str, dtype: str, path: Path) -> None:
    """One panel an operation and kind of pair: relative error over the radius, both logarithmic.

    Values are drawn solid, gradients dashed. Errors beyond 1 and results that are not finite stand
    at the top.
    """
    require("matplotlib", "viz")
    import matplotlib.pyplot as plt
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401 - no display needed
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator
    from PIL import Image

    panels = {key[1:]: libraries for key, libraries in curves.items() if key[0] == model}
    kinds = [kind for kind in KINDS if any(k == kind for _, k in panels)]
    pairs = dict.fromkeys(title for title, kind in panels if kind != "generic")
    singles = [title for title, _ in panels if title not in pairs]
    grid = [[(title, kind) for kind in kinds] for title in pairs]
    grid += [
        [(title, "generic") for title in singles[i : i + len(kinds)]]
        for i in range(0, len(singles), len(kinds))
    ]
    figure, axes = plt.subplots(
        len(grid),
        len(kinds),
        figsize=(2.3 * len(kinds), 2.0 * len(grid)),
        layout="constrained",
        sharey=True,
        sharex=True,
        squeeze=False,
    )
    eps = torch.finfo(DTYPES[dtype]).eps
    for line, keys in zip(axes, grid):
        for axis in line[len(keys) :]:
            axis.axis("off")
        for axis, (title, kind) in zip(line, keys):
            for library, errors in reversed(panels[title, kind].items()):  # ours on top
                for what, style in (("gradient", "--"), ("value", ".-")):
                    points = [
                        (r, getattr(e, what))
                        for r, e in errors.items()
                        if not math.isnan(getattr(e, what))
                    ]
                    if points:
                        radii, heights = zip(*((r, min(max(e, eps / 20), 3.0)) for r, e in points))
                        axis.loglog(radii, heights, style, color=COLORS[library], lw=1.2, ms=4)
            axis.axhline(eps, color="0.6", lw=0.8, ls=":")
            axis.set_title(title + (f",\n{KINDS[kind]}" if title in pairs else ""), fontsize=9)
            axis.tick_params(labelsize=8.5, labelbottom=True)
            axis.xaxis.set_major_locator(LogLocator(numticks=4))
            axis.grid(alpha=0.25, lw=0.5)
    axes[0][0].set_ylim(eps / 30, 5)
    for axis in axes[:, 0]:
        axis.set_ylabel("relative error", fontsize=9)
    for column in axes.T:
        lowest = [axis for axis in column if axis.axison][-1]
        lowest.set_xlabel("radius", fontsize=9)
    used = [
        library for library in COLORS if any(library in libraries for libraries in panels.values())
    ]
    handles = [Line2D([], [], color=COLORS[library], label=library) for library in used]
    handles += [
        Line2D([], [], color="k", ls=ls, label=what)
        for what, ls in (("value", "-"), ("gradient", "--"))
    ]
    handles.append(Line2D([], [], color="0.6", ls=":", label="round-off"))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        fontsize=9,
        ncols=4,
        title=f"{HEADINGS[model]}, {dtype}: error over the radius",
        title_fontsize=11,
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=90, format="png")
        # lines in few colours: a quarter of the bytes
        Image.open(temporary).convert("RGB").quantize(64).save(
            temporary, format="PNG", optimize=True
        )
    plt.close(figure)


def summary(curves: Curves, most: float = 1e-6) -> str:
    """Largest errors over all radii and kinds of pairs, one line an operation and one column a
    library.

    The last column tells whether our values are right to ``most`` or to three times the noise of
    the arguments at every radius, or as good as the best other ones.
    """
    lines = []
    for model, heading in HEADINGS.items():
        libraries = [
            n for n in COLORS if any(n in row for key, row in curves.items() if key[0] == model)
        ]
        lines += [
            "",
            f"| {heading} | {' | '.join(libraries)} | pass |",
            "|---|" + "--:|" * len(libraries) + "---|",
        ]
        for title in dict.fromkeys(title for kind, title, _ in curves if kind == model):
            cells = []
            values = {}
            for library in libraries:
                errors = [
                    error
                    for (kind, name, _), row in curves.items()
                    if (kind, name) == (model, title)
                    for error in row.get(library, {}).values()
                ]
                cells.append(
                    " / ".join(_worst([getattr(e, what) for e in errors]) for what in Error._fields)
                )
                known = [error.value for error in errors if not math.isnan(error.value)]
                values |= {library: max(known)} if known else {}
            others = [
                value for library, value in values.items() if library not in ("hypvision", NOISE)
            ]
            good = _within(curves, model, title, most) or values["hypvision"] <= min(
                others, default=0.0
            )
            text = " | ".join("" if cell == " / " else cell for cell in cells)
            lines.append(f"| {title} | {text} | {'yes' if good else 'no'} |")
    return "\n".join(lines).strip()


def _within(curves: Curves, model: str, title: str, most: float) -> bool:
    """Whether our values are right to ``most``, or to the noise of the arguments, at every
    radius."""
    for (kind, name, _), row in curves.items():
        if (kind, name) != (model, title):
            continue
        for radius, error in row["hypvision"].items():
            moved = row[NOISE][radius].value if NOISE in row else 0.0
            if not error.value <= max(most, FACTOR * moved):
                return False
    return True


def _worst(errors: list[float]) -> str:
    errors = [error for error in errors if not math.isnan(error)]
    return _short(max(errors)) if errors else ""


def table(curves: Curves, what: str) -> str:
    """Errors at a few radii."""
    lines = []
    for model, radii in SHOWN.items():
        lines += [
            "",
            f"| {HEADINGS[model]}, radius | | | " + " | ".join(f"{r:g}" for r in radii) + " |",
            "|---|---|---|" + "--:|" * len(radii),
        ]
        for (kind, title, pair), libraries in curves.items():
            if kind != model:
                continue
            for i, (library, errors) in enumerate(libraries.items()):
                cells = [_worst([getattr(errors[r], what)]) if r in errors else "" for r in radii]
                if any(cells):
                    first = ("", "") if i else (title, KINDS[pair])
                    lines.append(f"| {' | '.join(first)} | {library} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def _short(error: float) -> str:
    return "not finite" if math.isinf(error) else f"{error:.0e}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dim", type=int, default=16, help="dimension of the space (default: 16)")
    parser.add_argument(
        "--seeds", type=int, default=5, help="random inputs a point of a curve (default: 5)"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="default: all"
    )
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write tables here, images into images/numerics"
    )


def run(args: argparse.Namespace) -> None:
    for name in ("dim", "seeds"):
        value = getattr(args, name)
        if value < (2 if name == "dim" else 1):
            raise HypvisionError(f"--{name} is too small: {value}.")
    rows = all_rows()
    dtypes = {name: DTYPES[name] for name in DTYPES if name in args.dtypes}
    steps = sum(len(row.radii(dtype)) for row in rows for dtype in dtypes.values())
    with tqdm(total=steps, desc="numerics", unit="point", disable=None) as bar:
        found = {
            name: curves(rows, args.dim, dtype, args.seeds, bar) for name, dtype in dtypes.items()
        }
    versions = ", ".join(f"{label} {version(name)}" for label, name in VERSIONS.items())
    chosen = "" if len(dtypes) == len(DTYPES) else f" --dtypes {' '.join(dtypes)}"
    parts = [
        f"`tools/benchmark.py numerics --dim {args.dim} --seeds "
        f"{args.seeds}{chosen}`\n\n{versions}. Medians of {args.seeds} random inputs in {args.dim} "
        "dimensions, curvature 1; near points are 1e-5 of their radius apart. The first table of a "
        "dtype shows the largest error over all radii and kinds of pairs: value and, behind the "
        "stroke, the gradient. Noise is the largest change of the exact value when each coordinate "
        "of the arguments moves by half a unit of round-off (six draws of the signs)."
    ]
    folder = args.write.parent / "images" / "numerics" if args.write else None
    for dtype, of_dtype in found.items():
        half = DTYPES[dtype] in HALVES
        lines = summary(of_dtype, 16 * torch.finfo(DTYPES[dtype]).eps)
        parts.append(f"### {dtype}{' arguments under autocast' if half else ''}\n\n{lines}")
        for model, heading in HEADINGS.items() if folder else ():
            name = f"{model}_{dtype}.png"
            plot(of_dtype, model, dtype, folder / name)
            parts.append(f"![{heading}, {dtype}: errors over the radius](images/numerics/{name})")
        if dtype == "float32":
            for what in Error._fields:
                parts.append(
                    f"<details><summary>float32, {what}s at some "
                    f"radii</summary>\n\n{table(of_dtype, what)}"
                )
                parts.append("</details>")
    text = "\n\n".join(parts)
    if args.write:
        write_section(args.write, MARKS, text, f"\n## Round-off\n\n{MARKS[0]}\n{MARKS[1]}\n")
    print(text)
