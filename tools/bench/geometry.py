"""The geometry, its layers and optimisers against geoopt, HypLL and plain Euclidean counterparts:
time and memory.

All contenders of a case are called in turns (A B C A B C ...) in one process, so that whatever else
the machine does slows all of them; medians count, what is reported is their ratio to the Euclidean
counterpart. ``forward`` runs without gradients, ``both`` is forward and backward with gradients of
inputs and parameters. Peak memory is what is allocated at the worst moment of ``both`` (of the
step, for optimisers), beyond inputs and parameters.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from references import product_distance
from torch import Tensor, nn
from tqdm import tqdm

from bench import rows as row_ops
from bench.common import MIB, machine, peak_bytes, set_device, write_section
from hypvision.compat import GaneaMLR, PoincareMLR
from hypvision.geometry import Lorentz, Manifold, ManifoldParameter, PoincareBall, lorentz, poincare
from hypvision.io.errors import HypvisionError
from hypvision.nn import LorentzBatchNorm2d, LorentzConv2d, LorentzMLR
from hypvision.optim import RiemannianAdam

try:
    import geoopt
except ImportError:
    geoopt = None
try:
    import hypll.nn
    from hypll.manifolds.poincare_ball import Curvature
    from hypll.manifolds.poincare_ball import PoincareBall as HypllBall
    from hypll.tensors import ManifoldTensor, TangentTensor
except ImportError:
    hypll = None

EUCLIDEAN = "Euclidean"
# Options of the parts -> where each is written; what is measured in one call stands together
MARKS = {
    part: (f"<!-- geometry-{part}:begin -->", f"<!-- geometry-{part}:end -->")
    for part in ("cases", "ops", "compiled")
}
INTRODUCTION = f"""
## Geometry, layers, optimisers

Ratios to the Euclidean counterpart, which stands first with its own time: `torch.cdist`,
`F.normalize`, `nn.Linear`, `nn.Conv2d`, `nn.BatchNorm2d`, `torch.optim.Adam`. The targets are the
project's own. What a library lacks is left out; geoopt has no pairwise distances, so that its
points are broadcast.

{MARKS["cases"][0]}
{MARKS["cases"][1]}

Every operation, row by row, beside the faster of geoopt and HypLL on the same operation:

{MARKS["ops"][0]}
{MARKS["ops"][1]}

By `torch.compile`, [65536, 64]:

{MARKS["compiled"][0]}
{MARKS["compiled"][1]}
"""


class Run(NamedTuple):
    """A contender: what it computes, and what the result is differentiated by. Optimisers have a
    step alone."""

    function: Callable[[], Tensor]
    inputs: list[Tensor]


class Case(NamedTuple):
    """Contenders by name, the Euclidean counterpart first; targets of our forms by name, as
    (forward, both)."""

    title: str
    contenders: Callable[[str], dict[str, Run]]
    targets: dict[str, tuple[float | None, float | None]]


class Result(NamedTuple):
    """Seconds, and bytes at the worst moment."""

    forward: float | None
    both: float
    peak: int


def _module(module: nn.Module, x: Tensor) -> Run:
    return Run(lambda: module(x), [x, *(p for p in module.parameters() if p.requires_grad)])


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _hypll(x: Tensor, dim: int = -1) -> Callable[[], object]:
    ball = HypllBall(Curvature(1.0, constraining_strategy=lambda value: value))
    return lambda: ManifoldTensor(x, manifold=ball, man_dim=dim)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, without the class that HypLL wraps around those of a manifold."""
    return [getattr(parameter, "tensor", parameter) for parameter in module.parameters()]


def distances(device: str) -> dict[str, Run]:
    x = 0.1 * torch.randn(512, 64, device=device)
    y = 0.1 * torch.randn(1000, 64, device=device)
    found = {}

    def add(
        name: str, left: Tensor, right: Tensor, function: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        left = _leaf(left)
        right = _leaf(right)
        found[name] = Run(lambda: function(left, right), [left, right])

    add(EUCLIDEAN, x, y, torch.cdist)
    points = lorentz.expmap0(x, 1.0), lorentz.expmap0(y, 1.0)
    ball = poincare.expmap0(x, 1.0), poincare.expmap0(y, 1.0)
    add("hypvision Lorentz", *points, lambda a, b: lorentz.cdist(a, b, 1.0))
    add("hypvision ball", *ball, lambda a, b: poincare.cdist(a, b, 1.0))
    add("geoopt's product form", *points, product_distance.cdist)
    if geoopt:
        add("geoopt Lorentz", *points, lambda a, b: geoopt.Lorentz().dist(a[:, None], b[None]))
        add("geoopt ball", *ball, lambda a, b: geoopt.PoincareBall().dist(a[:, None], b[None]))
    if hypll:
        left, right = (_leaf(points[None]) for points in ball)
        first = _hypll(left)
        second = _hypll(right)
        found["HypLL ball"] = Run(lambda: first().manifold.cdist(first(), second()), [left, right])
    return found


def maps(function: str) -> Callable[[str], dict[str, Run]]:
    def contenders(device: str) -> dict[str, Run]:
        u = 0.1 * torch.randn(65536, 128, device=device)
        found = {}

        def add(name: str, value: Tensor, call: Callable[[Tensor], Tensor]) -> None:
            leaf = _leaf(value)
            found[name] = Run(lambda: call(leaf), [leaf])

        logarithm = function == "logmap0"
        add(EUCLIDEAN, u, lambda v: F.normalize(v, dim=-1))
        add(
            "hypvision Lorentz",
            lorentz.expmap0(u, 1.0) if logarithm else u,
            lambda v: getattr(lorentz, function)(v, 1.0),
        )
        ball = poincare.expmap0(u, 1.0) if logarithm else u
        add("hypvision ball", ball, lambda v: getattr(poincare, function)(v, 1.0))
        if geoopt:
            flat = geoopt.Lorentz()
            round_ = geoopt.PoincareBall()
            start = lorentz.expmap0(u, 1.0) if logarithm else F.pad(u, (1, 0))
            add("geoopt Lorentz", start, getattr(flat, function))
            add("geoopt ball", ball, getattr(round_, function))
        if hypll:
            leaf = _leaf(ball)
            manifold = _hypll(leaf)().manifold

            def call() -> Tensor:
                if logarithm:
                    return manifold.logmap(None, ManifoldTensor(leaf, manifold=manifold)).tensor
                return manifold.expmap(TangentTensor(leaf, None, manifold)).tensor

            found["HypLL ball"] = Run(call, [leaf])
        return found

    return contenders


def classifiers(device: str) -> dict[str, Run]:
    x = 0.05 * torch.randn(256, 512, device=device)
    ball = poincare.expmap0(x, 1.0)
    found = {
        EUCLIDEAN: _module(nn.Linear(512, 1000).to(device), _leaf(x)),
        "hypvision Lorentz": _module(LorentzMLR(512, 1000, Lorentz(1.0)).to(device), _leaf(x)),
        "hypvision ball (HNN++)": _module(
            PoincareMLR(512, 1000, PoincareBall(1.0)).to(device), _leaf(ball)
        ),
        "hypvision ball (Ganea)": _module(
            GaneaMLR(512, 1000, PoincareBall(1.0)).to(device), _leaf(ball)
        ),
    }
    if geoopt:
        manifold = geoopt.PoincareBall()
        leaf = _leaf(ball)
        planes = poincare.expmap0(
            0.05 * torch.randn(1000, 512, device=device), 1.0
        ).requires_grad_()
        normals = (0.05 * torch.randn(1000, 512, device=device)).requires_grad_()
        found["geoopt ball (Ganea)"] = Run(
            lambda: manifold.dist2plane(leaf[:, None], planes, normals, signed=True),
            [leaf, planes, normals],
        )
    if hypll:
        leaf = _leaf(ball)
        make = _hypll(leaf)
        layer = hypll.nn.HLinear(512, 1000, manifold=make().manifold).to(device)
        found["HypLL ball (HNN++ linear)"] = Run(
            lambda: layer(make()).tensor, [leaf, *_tensors(layer)]
        )
    return found


def convolutions(device: str) -> dict[str, Run]:
    x = 0.1 * torch.randn(8, 64, 32, 32, device=device)
    found = {
        EUCLIDEAN: _module(nn.Conv2d(64, 64, 3, padding=1).to(device), _leaf(x)),
        "hypvision Lorentz": _module(
            LorentzConv2d(64, 64, 3, Lorentz(1.0), padding=1).to(device), _leaf(x)
        ),
    }
    if hypll:
        leaf = _leaf(poincare.expmap0(x.movedim(1, -1), 1.0).movedim(-1, 1))
        make = _hypll(leaf, dim=1)
        layer = hypll.nn.HConvolution2d(64, 64, 3, manifold=make().manifold, padding=1).to(device)
        found["HypLL ball"] = Run(lambda: layer(make()).tensor, [leaf, *_tensors(layer)])
    return found


def norms(device: str, batch: int = 8) -> dict[str, Run]:
    x = 0.1 * torch.randn(batch, 64, 32, 32, device=device)
    found = {
        EUCLIDEAN: _module(nn.BatchNorm2d(64).to(device), _leaf(x)),
        "hypvision Lorentz": _module(LorentzBatchNorm2d(64, Lorentz(1.0)).to(device), _leaf(x)),
    }
    if hypll:
        leaf = _leaf(poincare.expmap0(x.movedim(1, -1), 1.0).movedim(-1, 1))
        make = _hypll(leaf, dim=1)
        layer = hypll.nn.HBatchNorm2d(64, manifold=make().manifold, use_midpoint=True).to(device)
        found["HypLL ball (midpoint)"] = Run(lambda: layer(make()).tensor, [leaf, *_tensors(layer)])
    return found


def optimizers(device: str) -> dict[str, Run]:
    u = 0.1 * torch.randn(100_000, 64, device=device)
    gradient = torch.randn(100_000, 65, device=device)

    def run(parameter: nn.Parameter, optimizer_class: Callable[..., torch.optim.Optimizer]) -> Run:
        parameter.grad = gradient[:, : parameter.shape[1]].contiguous()
        optimizer = optimizer_class([parameter], lr=1e-3)
        return Run(lambda: optimizer.step(), [])

    def points(manifold: Manifold) -> ManifoldParameter:
        return ManifoldParameter(manifold.from_tangent0(u).contiguous(), manifold)

    found = {EUCLIDEAN: run(nn.Parameter(u.clone()), torch.optim.Adam)}
    found["hypvision Lorentz"] = run(points(Lorentz(1.0).to(device)), RiemannianAdam)
    found["hypvision ball"] = run(points(PoincareBall(1.0).to(device)), RiemannianAdam)
    if geoopt:
        for name, manifold in (("Lorentz", geoopt.Lorentz()), ("ball", geoopt.PoincareBall())):
            data = lorentz.expmap0(u, 1.0) if name == "Lorentz" else poincare.expmap0(u, 1.0)
            found[f"geoopt {name}"] = run(
                geoopt.ManifoldParameter(data, manifold=manifold.to(device)),
                geoopt.optim.RiemannianAdam,
            )
    return found


CASES = {
    "cdist": Case(
        "pairwise distances [512, 64] x [1000, 64]",
        distances,
        {"hypvision Lorentz": (2.2, 3.0), "hypvision ball": (5.0, 5.0)},
    ),
    "expmap0": Case(
        "expmap0 [65536, 128]",
        maps("expmap0"),
        {"hypvision Lorentz": (2.0, None), "hypvision ball": (2.0, None)},
    ),
    "logmap0": Case(
        "logmap0 [65536, 128]",
        maps("logmap0"),
        {"hypvision Lorentz": (2.0, None), "hypvision ball": (2.0, None)},
    ),
    "mlr": Case(
        "logits [256, 512] -> 1000",
        classifiers,
        {
            "hypvision Lorentz": (None, 2.0),
            "hypvision ball (HNN++)": (None, 2.0),
            "hypvision ball (Ganea)": (None, 4.0),
        },
    ),
    "conv": Case(
        "convolution 3 x 3, 64 -> 64, on [8, 64, 32, 32]",
        convolutions,
        {"hypvision Lorentz": (None, 1.6)},
    ),
    "norm": Case(
        "batch norm in training, on [8, 64, 32, 32]",
        norms,
        {"hypvision Lorentz": (None, 2.0)},
    ),
    "norm-large": Case(
        "batch norm in training, on [64, 64, 32, 32]",
        partial(norms, batch=64),
        {"hypvision Lorentz": (None, 2.0)},
    ),
    "adam": Case(
        "Adam step of [100000, 64]",
        optimizers,
        {"hypvision Lorentz": (None, 3.0), "hypvision ball": (None, 3.0)},
    ),
}


def timed(
    calls: list[Callable[[], object]], repeats: int, limit: float, device: str, bar: tqdm
) -> list[float]:
    """Median seconds of each call, in turns, after two that do not count.

    A call that takes longer than ``limit`` seconds is repeated three times alone.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 2):
        for call, found in zip(calls, times):
            if turn >= 4 and found[-1] > limit:
                continue
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
        bar.update()
    return [statistics.median(found[2:] if len(found) > 3 else found[1:]) for found in times]


def measure(case: Case, repeats: int, limit: float, device: str, bar: tqdm) -> dict[str, Result]:
    """Results of all contenders of a case."""
    contenders = case.contenders(device)

    def forward(run: Run) -> Callable[[], object]:
        def call() -> None:
            with torch.no_grad():
                run.function()

        return call

    def both(run: Run) -> Callable[[], object]:
        if not run.inputs:
            return run.function

        def call() -> None:
            for leaf in run.inputs:
                leaf.grad = None
            out = run.function()
            out.backward(torch.ones_like(out))

        return call

    runs = list(contenders.values())
    steps_only = not runs[0].inputs
    first = (
        [None] * len(runs)
        if steps_only
        else timed([forward(r) for r in runs], repeats, limit, device, bar)
    )
    second = timed([both(r) for r in runs], repeats, limit, device, bar)
    peaks = [peak_bytes(both(r), device) for r in runs]
    return {name: Result(*values) for name, values in zip(contenders, zip(first, second, peaks))}


def rows(case: Case, results: dict[str, Result]) -> Iterator[str]:
    """Lines of the table: times of the Euclidean counterpart, ratios of the others."""
    euclidean = results[EUCLIDEAN]
    for name, found in results.items():
        targets = case.targets.get(name, (None, None))
        cells = []
        reached = []
        for value, base, target in zip(found[:2], euclidean[:2], targets):
            if value is None:
                cells.append("")
            elif name == EUCLIDEAN:
                cells.append(f"{1e3 * value:.2f} ms")
            else:
                cells.append(f"{value / base:.2f}x" + (f" (target {target:g}x)" if target else ""))
                reached += [value / base <= target] if target else []
        title = case.title if name == EUCLIDEAN else ""
        yield (
            f"| {title} | {name} | {' | '.join(cells)} | {found.peak / MIB:.1f} | "
            f"{passed(reached)} |"
        )


def passed(reached: list[bool]) -> str:
    """The cell of the last column, blank where there is no target."""
    return ("yes" if all(reached) else "no") if reached else ""


def op_table(names: list[str], repeats: int, limit: float, device: str) -> str:
    """Every op at every size: ratios of ours to the faster library, beside the targets."""
    lines = [
        "| op | size | faster library, us | forward | forward and backward | pass |",
        "|---|---|--:|--:|--:|---|",
    ]
    with tqdm(total=len(names) * len(row_ops.SIZES), desc="ops", unit="case", disable=None) as bar:
        for name in names:
            op = row_ops.OPS[name]
            for size in row_ops.SIZES:
                more = 20 if size == row_ops.SMALL else 1  # calls of 100 us scatter
                found = _op_times(
                    row_ops.contenders(op, size, device), more * repeats, limit, device
                )
                targets = row_ops.target(op, size)
                lines.append(_op_line(name, size, found, targets))
                bar.update()
    return "\n".join(lines)


def _op_times(
    runs: dict, repeats: int, limit: float, device: str
) -> dict[str, tuple[float, float]]:
    """Seconds of forward, and of forward and backward, by contender."""

    def forward(function: Callable, arguments: list[Tensor]) -> Callable[[], object]:
        def call() -> None:
            with torch.no_grad():
                function(*arguments)

        return call

    def both(function: Callable, arguments: list[Tensor]) -> Callable[[], object]:
        def call() -> None:
            out = function(*arguments)
            torch.autograd.grad(out, arguments, torch.ones_like(out), allow_unused=True)

        return call

    with tqdm(disable=True) as bar:
        columns = [
            timed([make(*run) for run in runs.values()], repeats, limit, device, bar)
            for make in (forward, both)
        ]
    return dict(zip(runs, zip(*columns)))


def _op_line(
    name: str, size: tuple[int, int], times_of: dict, targets: tuple[float | None, float | None]
) -> str:
    others = {library: times for library, times in times_of.items() if library != "hypvision"}
    cells = []
    reached = []
    for i, limit in enumerate(targets):
        ratio = times_of["hypvision"][i] / min(times[i] for times in others.values())
        cells.append(f"{ratio:.2f}x" + (f" (target {limit:g}x)" if limit else ""))
        reached += [ratio <= limit] if limit else []
    library = min(others, key=lambda key: others[key][1])
    base = " / ".join(f"{1e6 * t:.0f}" for t in others[library])
    return (
        f"| {name} | {list(size)} | {library}: {base} | {' | '.join(cells)} | {passed(reached)} |"
    )


def compiled_table(names: list[str], repeats: int, limit: float, device: str) -> str:
    """Our compiled forms at the largest size: ratios to geoopt's compiled and eager ones, beside
    the targets."""
    lines = [
        "| op, compiled | geoopt compiled, us | forward | forward and backward | pass |",
        "|---|--:|--:|--:|---|",
    ]
    for name in tqdm(names, desc="compiled", unit="op", disable=None):
        eager = row_ops.contenders(row_ops.OPS[name], row_ops.LARGE, device)
        torch._dynamo.reset()
        runs = {
            key: (torch.compile(function, dynamic=False), given)
            for key, (function, given) in eager.items()
        }
        found = _op_times(runs | {"eager": eager["geoopt"]}, repeats, limit, device)
        targets = row_ops.compiled_targets(name)
        cells = []
        reached = []
        for i in range(2):
            ratios = {
                what: found["hypvision"][i] / found[key][i]
                for what, key in (("compiled", "geoopt"), ("eager", "eager"))
            }
            reached += [ratios[what] <= most for what, most in targets.items()]
            cells.append(
                ", ".join(
                    f"{ratio:.2f}x of {what}"
                    + (f" (target {targets[what]:g}x)" if what in targets else "")
                    for what, ratio in ratios.items()
                )
            )
        base = " / ".join(f"{1e6 * t:.0f}" for t in found["geoopt"])
        lines.append(f"| {name} | {base} | {' | '.join(cells)} | {passed(reached)} |")
    return "\n".join(lines)


def case_table(names: list[str], repeats: int, limit: float, device: str) -> str:
    """Layers, optimisers and pairwise distances beside their Euclidean counterparts."""
    cases = {name: CASES[name] for name in names}
    lines = [
        "| case | | forward | forward and backward, or step | peak MiB | pass |",
        "|---|---|--:|--:|--:|---|",
    ]
    with tqdm(
        total=2 * len(cases) * (repeats + 2), desc="benchmark", unit="turn", disable=None
    ) as bar:
        for name, case in cases.items():
            bar.set_description(name)
            torch.manual_seed(0)
            lines += rows(case, measure(case, repeats, limit, device, bar))
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", nargs="*", choices=list(CASES), default=list(CASES), help="default: all"
    )
    parser.add_argument(
        "--ops",
        nargs="*",
        choices=list(row_ops.OPS),
        default=list(row_ops.OPS),
        help="default: all",
    )
    parser.add_argument(
        "--compiled",
        nargs="*",
        choices=row_ops.COMPILED,
        default=row_ops.COMPILED,
        help="by torch.compile; default: all",
    )
    parser.add_argument(
        "--repeats", type=int, default=15, help="timed calls of each contender (default: 15)"
    )
    parser.add_argument(
        "--limit", type=float, default=0.5, help="slower calls, in seconds, are timed twice only"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def run(args: argparse.Namespace) -> None:
    for name in ("repeats", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise HypvisionError(f"--{name} must be at least 1, got {value}.")
    set_device(args.device, args.threads)
    missing = [name for name, module in (("geoopt", geoopt), ("hypll", hypll)) if module is None]
    libraries = ["hypvision", *(name for name in ("geoopt", "hypll") if name not in missing)]
    facts = f"{machine(args.device)}; " + ", ".join(f"{name} {version(name)}" for name in libraries)
    facts += f". Medians of {args.repeats}, float32." + (
        f" Not installed: {', '.join(missing)}." if missing else ""
    )
    asked = {
        "cases": args.cases,
        "ops": args.ops if geoopt else [],
        "compiled": args.compiled if geoopt else [],
    }
    every = {"cases": list(CASES), "ops": list(row_ops.OPS), "compiled": row_ops.COMPILED}
    tables = {"cases": case_table, "ops": op_table, "compiled": compiled_table}
    for part, names in asked.items():
        if not names:
            continue
        command = ["tools/benchmark.py geometry"]
        for other in asked:
            if other != part:
                command.append(f"--{other}")
            elif names != every[part]:
                command.append(f"--{part} {' '.join(shlex.quote(name) for name in names)}")
        command.append(f"--repeats {args.repeats} --device {args.device}")
        command += [f"--threads {torch.get_num_threads()}"] if args.device == "cpu" else []
        lines = tables[part](names, args.repeats, args.limit, args.device)
        text = f"`{' '.join(command)}`\n\n{facts}\n\n{lines}"
        print(text, end="\n\n")
        if args.write:
            write_section(args.write, MARKS[part], text, INTRODUCTION)
            print(f"Written to {args.write}")
