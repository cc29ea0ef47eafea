"""Every public function of the geometry where such code breaks: a table of calls, and checks of
each row.

A new public function fails ``test_the_table_is_complete`` until it has a row.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from helpers.cases import each
from torch import Tensor, nn

from hypvision.geometry import Euclidean, Lorentz, Product, lorentz, maps, poincare

N = 3  # dimension of the space
LORENTZ, BALL = 1, 0  # coordinates of a point beyond it


class Operation(NamedTuple):
    """How a function is called: its tensors by name, each with its kind, and what else it is
    given."""

    function: Callable
    kinds: dict[str, str]
    extra: int  # coordinates of a point beyond the dimension of the space
    constants: dict
    curvatures: tuple[str, ...]
    random: bool = False
    implicit: bool = (
        False  # the gradient is implicit: its own derivative is not that of the function
    )

    def call(self, *tensors: Tensor, c: float | Tensor = 0.7):
        curvatures = dict(zip(self.curvatures, (c, 1.5 * c)))
        return self.function(**dict(zip(self.kinds, tensors)), **self.constants, **curvatures)

    def tensors(
        self, dtype: torch.dtype = torch.float32, rows: int = 4, seed: int = 0
    ) -> list[Tensor]:
        """Ordinary arguments, all with ``rows`` in front but those that every row shares."""
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        def point(*shape):
            space = 0.6 * random(*shape, N)
            return lorentz.expmap0(space, 0.7) if self.extra else poincare.expmap0(space / 2, 0.7)

        make = {
            "point": lambda: point(rows),
            "cloud": lambda: point(rows, 5),
            "other cloud": lambda: point(rows, 4),
            "tangent": lambda: random(rows, N + self.extra),
            "space": lambda: random(rows, N),
            "ball": lambda: poincare.expmap0(0.3 * random(rows, N), 0.7),
            "ideal": lambda: nn.functional.normalize(random(rows, N), dim=-1),
            "number": lambda: 0.5 + 0.1 * random(rows, 1),
            "offset": lambda: 0.5 * random(rows),
            "weights": lambda: random(rows, 5).abs() + 0.1,
            "many weights": lambda: random(rows, 2, 5).abs() + 0.1,
            "matrix": lambda: random(2, N),
            "normals": lambda: random(6, N),
            "plane points": lambda: poincare.expmap0(0.3 * random(6, N), 0.7),
            "offsets": lambda: 0.5 * random(6),
        }
        tensors = [make[kind]() for kind in self.kinds.values()]
        return [t.to(dtype) for t in tensors]

    def shared(self) -> list[bool]:
        """Which tensors all rows share."""
        return [
            kind in ("matrix", "normals", "plane points", "offsets") for kind in self.kinds.values()
        ]


def public(module) -> list[str]:
    """Names of a module's public functions; those of ``maps`` are partly the ball's."""
    homes = (module.__name__, poincare.__name__)
    functions = [
        k
        for k, v in vars(module).items()
        if isinstance(v, types.FunctionType) and v.__module__ in homes
    ]
    return getattr(module, "__all__", None) or [key for key in functions if not key.startswith("_")]


def _op(
    module, name, kinds="", function=None, constants=None, curvatures=("c",), **flags
) -> tuple[str, Operation]:
    """A row; ``kinds`` is ``"x: point, y: point"``."""
    pairs = (pair.split(": ") for pair in kinds.split(", ") if pair)
    extra = (
        LORENTZ if module is lorentz or (module is maps and name.startswith("lorentz")) else BALL
    )
    function = function or getattr(module, name)
    label = f"{module.__name__.rsplit('.', 1)[-1]}.{name}"
    return label, Operation(function, dict(pairs), extra, constants or {}, curvatures, **flags)


def _shared_rows(module, centroid: str):
    """What both models have under one name and with the same arguments."""
    kinds = {
        "busemann": "x: point, p: ideal",
        "cdist": "x: cloud, y: other cloud",
        "dist": "x: point, y: point",
        "dist0": "x: point",
        "egrad2rgrad": "x: point, v: tangent",
        "entailment_loss": "x: point, y: point",
        "expmap": "x: point, u: tangent",
        "expmap0": "u: space",
        "exterior_angle": "x: point, y: point",
        "geodesic": "t: number, x: point, y: point",
        "geodesic_unit": "t: number, x: point, u: tangent",
        "half_aperture": "x: point",
        "inner": "x: point, u: tangent, v: tangent",
        "logmap": "x: point, y: point",
        "logmap0": "x: point",
        "norm": "x: point, u: tangent",
        "rescale": "x: point",
        "rotate": "x: point, matrix: matrix",
        "sqdist": "x: point, y: point",
        "weighted_centroids": "weights: many weights, x: cloud",
        "transp": "x: point, y: point, v: tangent",
        "transp0": "x: point, u: space",
        "transp0back": "x: point, v: tangent",
        centroid: "x: cloud, weights: weights",
    }
    rows = [_op(module, name, value) for name, value in kinds.items()]
    rows += [
        _op(module, name, "x: point", curvatures=("c_old", "c_new"))
        for name in ("change_curvature", "scale_curvature")
    ]
    rows.append(_op(module, "frechet_mean", "x: cloud, weights: weights", implicit=True))
    rows.append(_op(module, "horosphere_dist", "x: point, p: ideal", constants={"tau": 0.25}))
    rows.append(_op(module, "wrapped_normal", "mean: point", constants={"std": 0.5}, random=True))
    rows.append(_op(module, "wrapped_normal_log_prob", "x: point, mean: point, std: number"))
    return rows


def _concat(x, y, c):
    return lorentz.concat([x, y], c)


def _split(x, c):
    return tuple(lorentz.split(x, [1, N - 1], c))


def _beta_concat(x, y, c):
    return poincare.beta_concat([x, y], c)


def _beta_split(x, c):
    return tuple(poincare.beta_split(x, [1, N - 1], c))


def _rescale_tangent(space):
    return lorentz.rescale_tangent(space, 2.0)


TABLE = dict(
    [
        *_shared_rows(lorentz, "centroid"),
        _op(lorentz, "boost", "x: point, y: point"),
        _op(lorentz, "exterior_angles", "x: cloud, y: other cloud"),
        _op(lorentz, "concat", "x: point, y: point", _concat),
        _op(lorentz, "dist2plane", "x: point, z: space, a: offset"),
        _op(lorentz, "from_space", "space: space"),
        _op(lorentz, "hyperplane_logits", "x: point, z: normals, a: offsets"),
        _op(lorentz, "matvec", "matrix: matrix, x: point"),
        _op(lorentz, "max_distance"),
        _op(lorentz, "minkowski_inner", "x: tangent, y: tangent", curvatures=()),
        _op(lorentz, "origin", constants={"n": N}),
        _op(lorentz, "projx", "x: tangent"),
        _op(lorentz, "proju", "x: point, v: tangent"),
        _op(lorentz, "rescale_tangent", "space: space", _rescale_tangent, curvatures=()),
        _op(lorentz, "scalar_mul", "r: number, x: point"),
        _op(lorentz, "split", "x: point", _split),
        _op(lorentz, "time_from_space", "space: space"),
        _op(lorentz, "unboost", "x: point, y: point"),
        *_shared_rows(poincare, "midpoint"),
        _op(poincare, "beta_concat", "x: point, y: point", _beta_concat),
        _op(poincare, "beta_split", "x: point", _beta_split),
        _op(poincare, "conformal_factor", "x: point"),
        _op(poincare, "dist2plane", "x: point, p: ball, a: space"),
        _op(poincare, "from_lorentz", "x: point")[:1]
        + (_op(lorentz, "projx", "x: point", poincare.from_lorentz)[1],),
        _op(poincare, "ganea_logits", "x: point, p: plane points, a: normals"),
        _op(poincare, "gyration", "u: point, v: point, w: tangent"),
        _op(poincare, "hyperplane_logits", "x: point, v: normals, r: offsets"),
        _op(poincare, "mobius_add", "x: point, y: point"),
        _op(poincare, "mobius_matvec", "matrix: matrix, x: point"),
        _op(poincare, "mobius_scalar_mul", "r: number, x: point"),
        _op(poincare, "mobius_sub", "x: point, y: point"),
        _op(poincare, "project", "x: point"),
        _op(poincare, "retr", "x: point, u: tangent"),
        _op(poincare, "to_lorentz", "x: point"),
        *(_op(maps, name, "x: point") for name in public(maps)),
    ]
)
every = pytest.mark.parametrize("name", TABLE)
ROWS_ONLY = {name: op for name, op in TABLE.items() if op.kinds}
DETERMINISTIC = {name: op for name, op in ROWS_ONLY.items() if not op.random}


def parts(out) -> tuple[Tensor, ...]:
    """The tensors of a result."""
    out = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(o if isinstance(o, Tensor) else torch.tensor(o) for o in out)


def same(got, expected, rtol=2e-5, atol=1e-5):
    for a, b in zip(parts(got), parts(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@each("module", [lorentz, poincare, maps])
def test_the_table_is_complete(module):
    name, functions = module.__name__.rsplit(".", 1)[-1], public(module)
    assert {f"{name}.{key}" for key in functions} == {
        key for key in TABLE if key.startswith(f"{name}.")
    }
    for key in functions:
        row = TABLE[f"{name}.{key}"]
        if row.function is getattr(module, key):
            required = [
                p.name
                for p in inspect.signature(row.function).parameters.values()
                if p.default is p.empty
            ]
            assert set(required) <= {*row.kinds, *row.constants, *row.curvatures}, key


# --------------------------------------------------------------------------------------------------
# Every finite input


MAGNITUDES = (0.0, 1e-45, 1e-30, 1e-6, 1.0, 1e6, 1e30, 3.4e38)


def extreme_rows(width: int, c: float) -> Tensor:
    """Vectors of all magnitudes, mixed ones, and points at the boundary of the ball and next to
    it."""
    rows = []
    for m in MAGNITUDES:
        rows += [[m] + [0.0] * (width - 1), [m * (-1) ** i for i in range(width)]]
    rows.append([-1.0] + [0.0] * (width - 1))
    rows.append([1.0] + [1e-45] * (width - 1))
    rows.append([1e-30] * (width - 1) + [1e30])
    rows.append([3.4e38, 1.0] + [-3.4e38] * (width - 2))
    boundary = torch.zeros(3, width)
    boundary[:, -1] = c**-0.5
    boundary[1, -1], boundary[2, -1] = (
        boundary[0, -1] * (1 - 2**-23),
        boundary[0, -1] * (1 + 2**-22),
    )
    return torch.cat([torch.tensor(rows), boundary])


def extreme_arguments(op: Operation, c: float) -> list[Tensor]:
    """All combinations of extreme rows."""
    width = {"point": N + op.extra, "tangent": N + op.extra, "space": N, "ball": N}
    numbers = torch.tensor([0.0, 1e-45, -1.0, 0.5, 3.0, 1e10, 3.4e38])
    choices = {}
    for name, kind in op.kinds.items():
        if kind in width:
            choices[name] = extreme_rows(width[kind], c)
        elif kind == "ideal":
            choices[name] = torch.cat([torch.eye(N), -torch.eye(N), torch.full((1, N), N**-0.5)])
        elif kind == "number":
            choices[name] = numbers[:, None]
            if name == "std":
                choices[name] = torch.tensor([[1e-6], [0.5], [1e6]])
        elif kind == "offset":
            choices[name] = numbers
    if choices:
        index = torch.cartesian_prod(*(torch.arange(len(rows)) for rows in choices.values()))
        index = index.reshape(len(index), -1)
        chosen = {name: rows[index[:, k]] for k, (name, rows) in enumerate(choices.items())}
    else:
        chosen = {}
    out = []
    for name, kind in op.kinds.items():
        if name in chosen:
            out.append(chosen[name])
        elif kind in ("cloud", "other cloud"):
            rows = extreme_rows(N + op.extra, c)
            # windows of neighbours, of one row repeated, and everything
            windows = [
                rows[[i, i, (i + 1) % len(rows), (i + 7) % len(rows), -i - 1]]
                for i in range(len(rows))
            ]
            out.append(torch.stack([*windows, *(row.expand(5, -1) for row in rows)]))
        elif kind == "weights":
            weights = torch.tensor(
                [
                    [1.0, 1, 1, 1, 1],
                    [0, 1, 0, 0, 0],
                    [1e-45, 1e-30, 1, 0, 0],
                    [3e37, 1, 0, 1e-30, 3e37],
                ]
            )
            out.append(
                weights.repeat(2 * len(extreme_rows(N, c)), 1)[: 2 * len(extreme_rows(N, c))]
            )
        elif kind == "many weights":
            out.append(
                torch.tensor([[1.0, 1, 1, 1, 1], [0, 1, 0, 1e-30, 0]]).expand(
                    2 * len(extreme_rows(N, c)), 2, 5
                )
            )
        elif kind == "matrix":
            out.append(torch.tensor([[1.0, 2.0, 3.0], [0, 0, 0]]))
        elif kind in ("normals", "plane points"):
            out.append(extreme_rows(N, c))
        elif kind == "offsets":
            out.append(torch.linspace(-100, 100, len(extreme_rows(N, c))))
    return [t.clone().requires_grad_() for t in out]


def check_finite_gradients(op: Operation, c: float, learned: bool) -> None:
    """Results, and gradients by all arguments and a learned curvature, of all extreme arguments."""
    tensors = extreme_arguments(op, c)
    curvature = torch.tensor(c, requires_grad=True)
    outs = parts(op.call(*tensors, c=curvature if learned else c))
    for out in outs:
        check_finite("result", out, op, tensors)
    # the gradient of a curvature is a sum over all rows
    weights = [torch.ones_like(o) / (o.numel() if learned else 1) for o in outs]
    gradients = torch.autograd.grad(outs, [curvature, *tensors], weights, allow_unused=True)
    for key, gradient in zip(("c", *op.kinds), gradients):
        if gradient is not None:
            check_finite(
                f"gradient of {key}",
                gradient if gradient.dim() else gradient.unsqueeze(0),
                op,
                tensors,
            )


@each("name", ROWS_ONLY)
def test_every_finite_input_has_a_finite_result_and_finite_gradients(name):
    """In float32, those whose squares overflow too."""
    op = ROWS_ONLY[name]
    for c in (0.01, 10.0):
        check_finite_gradients(op, c, learned=False)
    for c in (1e-4, 0.7, 10.0) if op.curvatures and not op.random else ():
        check_finite_gradients(op, c, learned=True)


LONG = ("tangent", "space", "ball", "normals", "plane points", "weights", "many weights")


@pytest.mark.slow
@each("name", ROWS_ONLY)
def test_long_arguments_beside_ordinary_ones_have_finite_gradients(name):
    """Each alone and all together, at ordinary points: the branches that extreme points of the same
    batch never take.

    The radii are those up to which nothing is float64, and beyond.
    """
    op = ROWS_ONLY[name]
    long = [i for i, kind in enumerate(op.kinds.values()) if kind in LONG]
    for radius in (0.1, 1.2, 1.7, 5.0):
        for size in (1e-30, 1e10, 1e20, 1e30):
            for chosen in {(i,) for i in long} | {tuple(long)} - {()}:
                tensors = op.tensors()
                for i, kind in enumerate(op.kinds.values()):
                    if kind in ("point", "cloud", "other cloud"):
                        length = math.sinh(radius) if op.extra else math.tanh(radius / 2)
                        tensors[i] = nn.functional.normalize(
                            tensors[i][..., op.extra :], dim=-1
                        ) * (length / 0.7**0.5)
                        tensors[i] = lorentz.from_space(tensors[i], 0.7) if op.extra else tensors[i]
                tensors = [
                    (t * size if i in chosen else t).requires_grad_() for i, t in enumerate(tensors)
                ]
                c = torch.tensor(0.7, requires_grad=True)
                outs = parts(op.call(*tensors, c=c))
                gradients = torch.autograd.grad(
                    outs, [*tensors, c], [torch.ones_like(o) for o in outs], allow_unused=True
                )
                for value in (*outs, *(g for g in gradients if g is not None)):
                    assert value.isfinite().all(), (radius, size, chosen)


INTO_THE_BALL = [
    "expmap",
    "expmap0",
    "geodesic",
    "geodesic_unit",
    "midpoint",
    "mobius_add",
    "mobius_scalar_mul",
]
INTO_THE_BALL += [
    "frechet_mean",
    "from_lorentz",
    "mobius_matvec",
    "mobius_sub",
    "project",
    "rescale",
    "retr",
]


def test_results_stay_in_the_ball():
    """From boundary to boundary too, where a Moebius sum is the quotient of two round-offs."""
    for name in INTO_THE_BALL:
        op = TABLE[f"poincare.{name}"]
        for c in (0.01, 10.0):
            out = op.call(*extreme_arguments(op, c), c=c).detach().double()
            assert (c**0.5 * out.norm(dim=-1)).max() < 1 + 1e-6, (name, c)


def check_finite(what: str, value: Tensor, op: Operation, tensors: list[Tensor]) -> None:
    bad = ~torch.isfinite(value)
    if bad.any():
        at = bad.reshape(len(bad), -1).any(1).nonzero()[:, 0].tolist()
        rows = [
            {key: t[i].tolist() for key, t in zip(op.kinds, tensors) if len(t) == len(bad)}
            for i in at[:: len(at) // 4 + 1]
        ]
        pytest.fail(f"{what}: {len(at)} of {len(bad)} rows are not finite, such as {rows}")


# --------------------------------------------------------------------------------------------------
# Half precision and autocast


HALVES = [torch.bfloat16, torch.float16]


def under_autocast(op, tensors, dtype):
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=dtype):
        return op.call(*tensors)


def test_autocast_changes_nothing():
    """The steps inside run in float32, matrix products too."""
    for name, op in TABLE.items():
        tensors = op.tensors()
        torch.manual_seed(1)
        expected = op.call(*tensors)
        for a, b in zip(
            parts(under_autocast(op, tensors, torch.bfloat16)), parts(expected), strict=True
        ):
            assert a.dtype == b.dtype and torch.equal(a, b), name


@each("name", ROWS_ONLY)
def test_half_precision_is_computed_in_single_and_rounded_once(name):
    op = ROWS_ONLY[name]
    for dtype in HALVES:
        tensors = [t.to(dtype) for t in op.tensors()]
        if op.random:
            assert all(
                o.dtype == dtype and torch.isfinite(o).all() for o in parts(op.call(*tensors))
            )
            continue
        exact = op.call(*(t.float() for t in tensors))
        for got in (op.call(*tensors), under_autocast(op, tensors, dtype)):
            for a, b in zip(parts(got), parts(exact), strict=True):
                assert a.dtype == dtype
                torch.testing.assert_close(
                    a.float(), b, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
                )


@each("name", DETERMINISTIC)
def test_gradients_of_half_tensors(name):
    op = DETERMINISTIC[name]
    tensors = [t.bfloat16().requires_grad_() for t in op.tensors()]
    exact = [t.detach().float().requires_grad_() for t in tensors]
    for values in (tensors, exact):
        sum(o.float().sum() for o in parts(op.call(*values))).backward()
    for t, e in zip(tensors, exact):
        if e.grad is None:
            assert t.grad is None
            continue
        assert t.grad.dtype == torch.bfloat16
        scale = e.grad.abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(t.grad.float(), e.grad, rtol=0.05, atol=0.02 * scale)


# --------------------------------------------------------------------------------------------------
# Transforms: compile, export, vmap, second derivatives


class Call(nn.Module):
    """A row as a module, for export."""

    def __init__(self, op: Operation, c: float = 0.7):
        super().__init__()
        self.op, self.c = op, c

    def forward(self, *tensors):
        return self.op.call(*tensors, c=self.c)


def check_compiled(name: str, backend: str) -> None:
    op = TABLE[name]
    torch._dynamo.reset()
    tensors = [t.requires_grad_() for t in op.tensors()]
    torch.manual_seed(1)
    expected = parts(op.call(*tensors))
    torch.manual_seed(1)
    got = parts(torch.compile(lambda *t: op.call(*t), fullgraph=True, backend=backend)(*tensors))
    same(got, expected)
    if not tensors or not expected[0].requires_grad:
        return
    ones = [torch.ones_like(o) for o in expected]
    gradients = (
        torch.autograd.grad(outs, tensors, ones, allow_unused=True) for outs in (got, expected)
    )
    for a, b in zip(*gradients):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 * max(1, b.abs().max().item()))


# Some of each kind: functions differentiated by hand, branches on numbers, caps, products
COMPILED = [f"lorentz.{name}" for name in ("centroid", "dist", "hyperplane_logits", "rescale")]
COMPILED += ["poincare.dist2plane", "poincare.expmap", "maps.klein_to_lorentz"]


@pytest.mark.quick(*COMPILED)
@pytest.mark.parametrize("name", TABLE)
def test_compiles_in_one_graph(name):
    check_compiled(name, "eager")


@pytest.mark.slow
@every
def test_compiles_with_inductor(name):
    with torch._inductor.config.patch(
        fallback_random=True
    ):  # or it draws other numbers than eager mode
        check_compiled(name, "inductor")


def check_exported(name: str) -> None:
    op = ROWS_ONLY[name]
    tensors = op.tensors()
    exported = torch.export.export(Call(op), tuple(tensors)).module()
    others = op.tensors(seed=3)
    torch.manual_seed(1)
    got = exported(*others)
    torch.manual_seed(1)
    same(got, op.call(*others))


EXPORTED = [
    "lorentz.expmap",
    "lorentz.cdist",
    "lorentz.hyperplane_logits",
    "poincare.mobius_add",
    "poincare.midpoint",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_exports(name):
    check_exported(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROWS_ONLY if name not in EXPORTED])
def test_everything_exports(name):
    check_exported(name)


@pytest.mark.slow
@each("name", DETERMINISTIC)
def test_vmap_is_a_loop(name):
    op = DETERMINISTIC[name]
    tensors, shared = op.tensors(torch.float64), op.shared()
    rows = [
        parts(op.call(*(t if fixed else t[i] for t, fixed in zip(tensors, shared))))
        for i in range(4)
    ]
    expected = [torch.stack(column) for column in zip(*rows)]
    in_dims = tuple(None if fixed else 0 for fixed in shared)
    same(torch.func.vmap(op.call, in_dims)(*tensors), expected, 1e-12, 1e-12)
    # the mapped dimension elsewhere, and one argument that is not mapped
    moved = [t if fixed else t.movedim(0, -1) for t, fixed in zip(tensors, shared)]
    in_dims = tuple(None if fixed else -1 for fixed in shared)
    same(torch.func.vmap(op.call, in_dims)(*moved), expected, 1e-12, 1e-12)
    mapped = [k for k, fixed in enumerate(shared) if not fixed]
    for k in mapped if len(mapped) > 1 else ():
        in_dims = tuple(None if fixed or j == k else 0 for j, fixed in enumerate(shared))
        arguments = [t[0] if j == k else t for j, t in enumerate(tensors)]
        rows = [
            parts(op.call(*(t if d is None else t[i] for t, d in zip(arguments, in_dims))))
            for i in range(4)
        ]
        expected_k = [torch.stack(column) for column in zip(*rows)]
        same(torch.func.vmap(op.call, in_dims)(*arguments), expected_k, 1e-12, 1e-12)


@pytest.mark.slow
@each("name", DETERMINISTIC)
def test_gradients_per_row_and_jacobians(name):
    """``vmap(grad)`` and ``jacrev``, as per-sample gradients and influence functions use them."""
    op = DETERMINISTIC[name]
    tensors, shared = op.tensors(torch.float64), op.shared()

    def total(*values):
        return sum(o.sum() for o in parts(op.call(*values)))

    at = [k for k, fixed in enumerate(shared) if not fixed][-1]
    in_dims = tuple(None if fixed else 0 for fixed in shared)
    got = torch.func.vmap(torch.func.grad(total, argnums=at), in_dims)(*tensors)
    leaves = [t.clone().requires_grad_() for t in tensors]
    (expected,) = torch.autograd.grad(total(*leaves), leaves[at])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    row = [t if fixed else t[0] for t, fixed in zip(tensors, shared)]
    jacobian = torch.func.jacrev(lambda *values: parts(op.call(*values))[0], argnums=at)(*row)
    assert torch.isfinite(jacobian).all()


@each("place", ["origin", "one point"])
@each("name", DETERMINISTIC)
def test_gradients_at_special_places_are_those_of_plain_operations(name, place):
    """Where distances, vectors and offsets are 0: by hand, by hand for second derivatives, by
    ``torch.func``."""
    op = DETERMINISTIC[name]
    tensors = op.tensors(torch.float64, rows=2)
    for k, kind in enumerate(op.kinds.values()):
        if kind in ("tangent", "space", "offset", "offsets"):
            tensors[k] = torch.zeros_like(tensors[k])
        elif kind in ("point", "cloud", "other cloud", "ball", "plane points"):
            at = torch.tensor(
                [0.2, -0.1, 0.3] if place == "one point" else [0.0] * N, dtype=torch.float64
            )
            points = (
                lorentz.expmap0(at, 0.7)
                if tensors[k].shape[-1] > N
                else poincare.expmap0(at / 2, 0.7)
            )
            tensors[k] = points.expand_as(tensors[k]).clone()

    def total(*values):
        return sum(
            (o * torch.arange(1.0, o.numel() + 1).cos().view(o.shape)).sum()
            for o in parts(op.call(*values))
        )

    def gradients(**options):
        leaves = [t.clone().requires_grad_() for t in tensors]
        found = torch.autograd.grad(total(*leaves), leaves, allow_unused=True, **options)
        return [torch.zeros_like(t) if g is None else g.detach() for t, g in zip(leaves, found)]

    expected = torch.func.grad(total, argnums=tuple(range(len(tensors))))(*tensors)
    for found in (gradients(), gradients(create_graph=True)):
        same(found, expected, 1e-9, 1e-9)


@pytest.mark.slow
@each("name", DETERMINISTIC)
def test_first_and_second_derivatives(name):
    op = DETERMINISTIC[name]
    tensors = [t.requires_grad_() for t in op.tensors(torch.float64, rows=2)]
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def function(*values):
        return parts(op.call(*values[:-1], c=values[-1]))

    arguments = (*tensors, c) if op.curvatures else (*tensors, c.detach())
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True, rtol=1e-4)
    if op.implicit:
        gradients = torch.autograd.grad(
            sum(o.sum() for o in function(*arguments)), tensors, create_graph=True
        )
        second = torch.autograd.grad(sum(g.sum() for g in gradients), tensors, allow_unused=True)
        assert all(torch.isfinite(g).all() for g in second if g is not None)
    else:
        assert torch.autograd.gradgradcheck(
            function, arguments, fast_mode=True, rtol=1e-4, atol=1e-6
        )


# --------------------------------------------------------------------------------------------------
# Errors name the argument


LISTS = {
    "lorentz.concat",
    "poincare.beta_concat",
}  # their tensors come in a list, and may differ in dimension


def refused(
    error: type[Exception], said: str, name: str, tensors: list[Tensor], c: float | Tensor = 0.7
) -> None:
    """The call raises this error with these words; a failure names the call."""
    try:
        TABLE[name].call(*tensors, c=c)
    except error as problem:
        assert re.search(said, str(problem)), f"{name}: {problem}"
    else:
        pytest.fail(f"{name} took what it must refuse")


def test_bad_curvatures_are_named():
    for name, op in TABLE.items():
        for c in (0.0, -1.0, math.nan, 0) if op.curvatures else ():
            refused(ValueError, "curvature c", name, op.tensors(), c)


def test_integers_are_refused_and_named():
    """Whatever the argument is: points, vectors, weights, offsets, fractions, curvatures."""
    for name, op in ROWS_ONLY.items():
        tensors = op.tensors()
        for k, key in enumerate(op.kinds):
            said = rf"points\[{k}\]" if name in LISTS else rf"\b{key}\b"
            wrong = [t.long() if j == k else t for j, t in enumerate(tensors)]
            refused(TypeError, f"{said}.*floating point", name, wrong)
        if op.curvatures:
            said = r"\bc(_old)? must be a tensor of floating point"
            refused(TypeError, said, name, tensors, torch.tensor(2))


def test_shapes_that_do_not_fit_are_named():
    for name in ROWS_ONLY.keys() - LISTS:
        kinds, tensors = TABLE[name].kinds, TABLE[name].tensors()
        vectors = [
            key
            for key, kind in kinds.items()
            if "weights" not in kind and kind[:6] not in ("number", "offset")
        ]
        for key in vectors if len(vectors) > 1 else ():
            wrong = [
                torch.cat([t, t], -1) if key == other else t for other, t in zip(kinds, tensors)
            ]
            refused(ValueError, rf"\b{key}\b", name, wrong)


MEANS = ["lorentz.centroid", "lorentz.frechet_mean", "poincare.midpoint", "poincare.frechet_mean"]
MEANS += ["lorentz.weighted_centroids", "poincare.weighted_centroids"]


def mean_of(name: str, x: Tensor, weights: Tensor) -> Tensor:
    if name.endswith("weighted_centroids"):
        return TABLE[name].function(weights.unsqueeze(-2), x, 0.7).squeeze(-2)
    return TABLE[name].function(x, weights, 0.7)


@each("name", MEANS)
def test_weights_that_do_not_fit_are_named(name):
    x = TABLE[name].tensors()["weighted" in name]
    x = x if x.dim() == 3 else TABLE[name].tensors()[1]
    for shape in ((4, 4), (4, 6), (4, 1)):
        with pytest.raises(
            ValueError,
            match=f"the last dimension of weights must be 5, the number of points; got {shape[-1]}",
        ):
            mean_of(name, x, torch.ones(shape))
    with pytest.raises(ValueError, match="x must have at least two dimensions"):
        mean_of(name, x[0, 0], torch.ones(5))


def refuses_nothing(mean: Callable[[Tensor, Tensor], Tensor], size: int) -> None:
    """A mean of points of so many coordinates, and their weights, is none of no points."""
    with pytest.raises(ValueError, match="no points, which have no mean"):
        mean(torch.zeros(2, 0, size), torch.zeros(2, 0))


@each("name", MEANS)
def test_no_points_have_no_mean(name):
    refuses_nothing(partial(mean_of, name), N + TABLE[name].extra)


@each("space, size", [(Euclidean(), N), (Product((Euclidean(), 2), (Lorentz(0.7), 2)), 5)])
def test_no_points_have_no_mean_in_other_spaces(space, size):
    refuses_nothing(space.centroid, size)
    refuses_nothing(space.frechet_mean, size)
    refuses_nothing(lambda x, w: space.weighted_centroids(w.unsqueeze(-2), x), size)


def unfit(name: str, operation: Callable, tensors: list[Tensor]) -> None:
    """The first tensor has four rows, the others have three."""
    with pytest.raises(ValueError, match=r"\(4, .*\(3, .* do not fit") as told:
        operation(tensors[0], *(tensor[:3] for tensor in tensors[1:]))
    assert name.split(".")[-1] in str(told.value)
    assert ("cdist" in str(told.value)) == (name.split(".")[-1] in ("dist", "sqdist", "cdist"))


ROWS = {"point", "tangent", "space", "ball", "ideal"}
APART = ("concat", "entailment_loss", "horosphere_dist")  # made of others, which say it


def several(op: Operation) -> bool:
    kinds = [*op.kinds.values()]
    return sum(kind in ROWS for kind in kinds) > 1 or kinds == ["cloud", "other cloud"]


@each("name", [n for n, op in TABLE.items() if several(op) and not n.endswith(APART)])
def test_rows_that_do_not_fit_are_named(name):
    op = TABLE[name]
    tensors = op.tensors()
    vectors = [i for i, kind in enumerate(op.kinds.values()) if kind in ROWS or "cloud" in kind]

    def operation(*rows: Tensor) -> Tensor:
        given = dict(enumerate(tensors)) | dict(zip(vectors, rows))
        return op.call(*(given[i] for i in range(len(tensors))))

    unfit(name, operation, [tensors[i] for i in vectors])


FLAT = ["dist", "sqdist", "expmap", "logmap", "boost", "unboost", "exterior_angle", "busemann"]


@each("name", FLAT)
def test_rows_that_do_not_fit_are_named_in_flat_space(name):
    unfit(name, getattr(Euclidean(), name), [torch.ones(4, N), torch.ones(4, N)])


@each("dtype", [torch.float32, torch.float64])
@each("name", MEANS)
def test_without_any_weight_the_mean_is_the_origin(name, dtype):
    """And other rows of the same batch are what they would be alone."""
    op = TABLE[name]
    x = op.tensors(dtype)[list(op.kinds).index("x")].requires_grad_()
    weights = torch.ones(4, 5, dtype=dtype)
    weights[1] = 0
    weights.requires_grad_()
    out = mean_of(name, x, weights)
    origin = lorentz.origin(N, 0.7, dtype=dtype) if op.extra else torch.zeros(N, dtype=dtype)
    torch.testing.assert_close(out[1], origin)
    torch.testing.assert_close(out[0], mean_of(name, x[0], weights[0]))
    for gradient in torch.autograd.grad(out.sum(), (x, weights)):
        assert torch.isfinite(gradient).all()


def _points(*shape) -> Tensor:
    return lorentz.expmap0(0.3 * torch.randn(*shape, N), 1.0)


BAD_ARGUMENTS = {
    "the eps of a projection": (
        lambda: poincare.project(torch.zeros(3), 1.0, eps=2),
        "project: eps.*below 1, got 2",
    ),
    "a negative eps": (
        lambda: poincare.expmap0(torch.zeros(3), 1.0, eps=-0.1),
        "expmap0: eps.*at least 0",
    ),
    "an infinite curvature": (
        lambda: lorentz.dist0(_points(2), float("inf")),
        "curvature c must be positive",
    ),
    "a negative cone": (
        lambda: lorentz.half_aperture(_points(2), 1.0, -0.1),
        "min_radius must be 0 or more, got -0.1",
    ),
    "a negative cone of the ball": (
        lambda: poincare.half_aperture(torch.zeros(2), 1.0, -1),
        "min_radius",
    ),
    "a negative cone's loss": (
        lambda: poincare.entailment_loss(*torch.zeros(2, 3), 1.0, -1),
        "min_radius",
    ),
    "no spread": (
        lambda: lorentz.wrapped_normal(_points(2), 0.0, 1.0),
        "wrapped_normal: std must be positive, got 0",
    ),
    "a negative spread": (
        lambda: poincare.wrapped_normal(torch.zeros(3), -1, 1.0),
        "std must be positive, got -1",
    ),
    "spreads that do not fit": (
        lambda: lorentz.wrapped_normal(_points(2), torch.ones(2), 1.0),
        "the last dimension of std must be 3, the number of dimensions; got 2",
    ),
    "a density without spread": (
        lambda: poincare.wrapped_normal_log_prob(torch.zeros(3), torch.zeros(3), 0, 1.0),
        "wrapped_normal_log_prob: std must be positive",
    ),
    "fractions without a dimension for the coordinates": (
        lambda: lorentz.geodesic(torch.linspace(0, 1, N + 1), _points(), _points(), 1.0),
        r"geodesic: t must be a number, or end in a dimension of 1.*unsqueeze\(-1\)",
    ),
    "the same in the ball": (
        lambda: poincare.geodesic_unit(torch.ones(7), torch.zeros(3), torch.ones(3), 1.0),
        r"geodesic_unit: t must be.*Got the shape \(7,\)",
    ),
    "the same in flat space": (
        lambda: Euclidean().geodesic(torch.linspace(0, 1, 3), torch.zeros(3), torch.ones(3)),
        r"geodesic: t must be.*Got the shape \(3,\)",
    ),
    "factors, the same": (
        lambda: poincare.mobius_scalar_mul(torch.ones(3), torch.zeros(3), 1.0),
        "scalar_mul: r must",
    ),
    "no room": (
        lambda: lorentz.rescale(_points(2), 1.0, limit=0.0),
        "rescale: limit must be positive, got 0.0",
    ),
    "no slope": (
        lambda: lorentz.rescale_tangent(torch.ones(3), 1.0, slope=-1.0),
        "slope must be positive, got -1.0",
    ),
    "no steps": (
        lambda: lorentz.frechet_mean(_points(2), None, 1.0, steps=0),
        "steps must be positive, got 0",
    ),
    "offsets that do not fit": (
        lambda: lorentz.hyperplane_logits(_points(2), torch.ones(4, N), torch.ones(3), 1.0),
        "hyperplane_logits: the last dimension of a must be 4, the number of hyperplanes; got 3",
    ),
    "one offset": (
        lambda: lorentz.hyperplane_logits(_points(2), torch.ones(4, N), torch.tensor(1.0), 1.0),
        "the last dimension of a must be 4, the number of hyperplanes; got a single number",
    ),
    "a normal that is no matrix": (
        lambda: lorentz.hyperplane_logits(_points(2), torch.ones(N), torch.ones(1), 1.0),
        "z must be a matrix",
    ),
    "offsets of the ball": (
        lambda: poincare.hyperplane_logits(torch.zeros(2, 3), torch.ones(4, 3), torch.ones(5), 1.0),
        "the last dimension of r must be 4, the number of hyperplanes; got 5",
    ),
    "factors of the ball": (
        lambda: poincare.hyperplane_logits(
            torch.zeros(2, 3), torch.ones(4, 3), torch.ones(4), 1.0, torch.ones(2)
        ),
        "the last dimension of g must be 4, the number of hyperplanes; got 2",
    ),
    "points and normals that differ": (
        lambda: poincare.ganea_logits(torch.zeros(2, 3), torch.zeros(4, 3), torch.ones(5, 3), 1.0),
        r"p and a must be matrices \(K, n\) of one shape, got \(4, 3\) and \(5, 3\)",
    ),
    "one point for all pairs": (
        lambda: lorentz.cdist(_points(), _points(4), 1.0),
        "cdist: x must have at least two",
    ),
}


@each("case", BAD_ARGUMENTS)
def test_bad_numbers_are_named(case):
    call, said = BAD_ARGUMENTS[case]
    with pytest.raises(ValueError, match=said):
        call()


def test_lists_of_points_are_checked():
    with pytest.raises(TypeError, match="points must be a list"):
        lorentz.concat(torch.ones(3, 4), 1.0)
    with pytest.raises(ValueError, match="at least one"):
        poincare.beta_concat([], 1.0)
