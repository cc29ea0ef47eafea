"""One definition a formula: eager, compiled and transformed calls agree, on ordinary and on extreme
arguments.

The forms that compilers and ``torch.func`` see are called here directly, which takes milliseconds;
that compilers take them is tested in ``test_robustness``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from helpers.cases import each
from test_robustness import TABLE, check_finite_gradients, parts
from torch import Tensor

from hypvision.geometry import lorentz, poincare

DETERMINISTIC = [name for name, op in TABLE.items() if not op.random and op.kinds]


@pytest.fixture
def compiling(monkeypatch):
    """Take the forms for compilers."""
    return lambda on=True: monkeypatch.setattr(torch.compiler, "is_compiling", lambda: on)


def called(op, tensors, c):
    """Values, and gradients by all arguments and the curvature."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    c = torch.tensor(c, dtype=tensors[0].dtype, requires_grad=True)
    outs = parts(op.call(*tensors, c=c))
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outs]
    return outs, torch.autograd.grad(outs, [*tensors, c], weights, allow_unused=True)


@pytest.mark.quick("1.0")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 4.0])
@each("name", DETERMINISTIC)
def test_eager_and_compiled_forms_agree(name, scale, compiling):
    """Near the origin, and where hyperbolic sines are large; the gradient of the curvature too."""
    op = TABLE[name]
    tensors = op.tensors(torch.float64)
    for i, (t, kind) in enumerate(zip(tensors, op.kinds.values())):
        if kind in ("point", "cloud", "other cloud"):
            move = lorentz.scalar_mul if op.extra else poincare.mobius_scalar_mul
            tensors[i] = move(scale, t, 0.7)
    compiling(False)
    expected, gradients = called(op, tensors, 0.7)
    compiling()
    found, others = called(op, tensors, 0.7)
    for a, b in zip((*found, *others), (*expected, *gradients)):
        if b is None:
            assert a is None or not a.any()
            continue
        size = b.detach().abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7 * size)


NOT_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
NUMBERS = ("number", "offset", "offsets", "weights", "many weights")
SHARED = (
    "matrix",
    "normals",
    "plane points",
    "offsets",
)  # every row of the result depends on all of their rows


def with_value(op, i: int, value: float) -> list[Tensor]:
    """Ordinary arguments, but the last number of the first row of argument ``i`` is ``value``."""
    tensors = op.tensors()
    (tensors[i] if list(op.kinds.values())[i] in SHARED else tensors[i][0]).view(-1)[-1] = value
    return tensors


def repeated(op, i: int, copy: bool, value: float) -> list[Tensor]:
    """As before, and the same tensor, or copies of it, for all arguments that take its shape."""
    tensors, kinds = with_value(op, i, value), list(op.kinds.values())
    for j, other in enumerate(tensors):
        if other.shape == tensors[i].shape or {kinds[i], kinds[j]} == {"cloud", "other cloud"}:
            tensors[j] = tensors[i].clone() if copy else tensors[i]
    return tensors


def first_row(
    name: str, i: int, what: float, call: Callable, arguments: Callable
) -> tuple[Tensor, ...]:
    """Results of the row with ``what``, which are not finite; other rows, and pairs of other
    points, keep their values.

    Infinite numbers that are no coordinates may count as the largest finite ones.
    """

    def result(value):
        torch.manual_seed(1)
        return parts(call(*arguments(value)))

    kind = list(TABLE[name].kinds.values())[i]
    found, clean = result(what), result(0.5)
    rows = tuple(out[0] for out in found)
    if all(row.isfinite().all() for row in rows):
        assert math.isinf(what) and (kind in NUMBERS or name == "lorentz.minkowski_inner"), (
            "it became a number"
        )
        largest = math.copysign(torch.finfo(torch.float32).max, what)
        torch.testing.assert_close(rows, tuple(out[0] for out in result(largest)))
    if kind not in SHARED:
        for out, right in zip(found, clean):
            torch.testing.assert_close(out[1:], right[1:], rtol=1e-4, atol=1e-5)
    if name.endswith("cdist"):
        left, right = (t[0].isfinite().all(-1) for t in arguments(what))
        pairs = left[:, None] & right
        assert torch.equal(rows[0].isfinite(), pairs)
        torch.testing.assert_close(rows[0][pairs], clean[0][0][pairs], rtol=1e-4, atol=1e-5)
    return rows


@pytest.mark.slow
@each("name", [name for name, op in TABLE.items() if op.kinds])
def test_what_is_not_a_number_stays_so(name, compiling):
    """In every argument, for one tensor in all places and for copies of it, eager and compiled: all
    the same."""
    op = TABLE[name]
    for i, kind in enumerate(op.kinds.values()):
        shapes = [t.shape for t in op.tensors()]
        repeats = shapes.count(shapes[i]) > 1 or kind in ("cloud", "other cloud")
        # of coordinates, one sign of the infinite numbers in each argument: squares and largest
        # sizes know no sign
        for what in NOT_NUMBERS.values() if kind in NUMBERS else (math.nan, (-1) ** i * math.inf):
            alone, together = [], []
            for compiled in (False, True):
                compiling(compiled)
                alone.append(first_row(name, i, what, op.call, partial(with_value, op, i)))
                for copy in (False, True) if repeats else ():
                    together.append(
                        first_row(name, i, what, op.call, partial(repeated, op, i, copy))
                    )
            for ways in (alone, together):
                for rows in ways[1:]:
                    torch.testing.assert_close(rows, ways[0], rtol=1e-3, atol=1e-3, equal_nan=True)


def check_compiled(name: str, backend: str) -> None:
    """As above, of one graph for each way to give the arguments."""
    op = TABLE[name]
    for copy in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(op.call, fullgraph=True, backend=backend)
        for what in NOT_NUMBERS.values():
            ways = [
                first_row(name, 0, what, call, partial(repeated, op, 0, copy))
                for call in (op.call, compiled)
            ]
            torch.testing.assert_close(*ways, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", ["lorentz.cdist", "poincare.cdist"])
def test_compilers_keep_what_is_not_a_number(name):
    check_compiled(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lorentz.cdist", "poincare.cdist", "lorentz.logmap", "lorentz.expmap0"]
)
def test_inductor_keeps_what_is_not_a_number(name):
    check_compiled(name, "inductor")


LONG = [f"lorentz.{name}" for name in ("transp0", "transp0back")]
LONG += [f"poincare.{name}" for name in ("project", "retr", "expmap0")]


@each("size", [3e17, 3e18, 3e38])
@each("name", LONG)
def test_gradients_of_rows_that_are_long_in_every_coordinate_are_finite(name, size):
    """Of which the sums overflow, and no coordinate alone."""
    op = TABLE[name]
    torch.manual_seed(0)
    tensors = [torch.randn(200, n) for n in (6, 5 if name == "lorentz.transp0" else 6)][
        : len(op.kinds)
    ]
    tensors = [(t / t.abs().max() * size).requires_grad_() for t in tensors]
    c = torch.tensor(1e-4, requires_grad=True)
    out = op.call(*tensors, c=c)
    for gradient in (out, *torch.autograd.grad(out, [*tensors, c], torch.ones_like(out))):
        assert gradient.isfinite().all()


def test_gradients_of_hyperplanes_that_are_far_are_finite():
    r, c = torch.tensor([3e38, -3e38], requires_grad=True), torch.tensor(0.7, requires_grad=True)
    x, v = torch.randn(4, 3).mul(0.1).requires_grad_(), torch.randn(2, 3, requires_grad=True)
    out = poincare.hyperplane_logits(x, v, r, c)
    assert all(g.isfinite().all() for g in (out, *torch.autograd.grad(out.sum(), [x, v, r, c])))


@pytest.mark.parametrize("c", [1e-4, 0.7, 10.0])
@pytest.mark.parametrize("name", ["dist", "sqdist", "logmap", "transp"])
def test_compiled_calls_of_far_points_are_finite(name, c, compiling):
    """The gradients too; of ``transp``, vectors of 1e30 are too long for that."""
    compiling()
    if name != "transp":
        check_finite_gradients(TABLE[f"lorentz.{name}"], c, learned=True)
    far = [torch.randn(8, 65) * size for size in (3e18, 1.0, 1.0)][
        : len(TABLE[f"lorentz.{name}"].kinds)
    ]
    assert getattr(lorentz, name)(*far, c).isfinite().all()


@pytest.mark.slow
@each("name", DETERMINISTIC)
def test_forward_derivatives_equal_backward_ones(name):
    """``torch.func.jacfwd`` and its composition with ``jacrev``, which is the Hessian."""
    op = TABLE[name]
    tensors = op.tensors(torch.float64, rows=1)

    def function(first):
        return sum((out * out).sum() for out in parts(op.call(first, *tensors[1:])))

    value = function(tensors[0])
    forward, backward = (
        torch.func.jacfwd(function)(tensors[0]),
        torch.func.jacrev(function)(tensors[0]),
    )
    torch.testing.assert_close(forward, backward, rtol=1e-8, atol=1e-9)
    leaf = tensors[0].clone().requires_grad_()
    (eager,) = torch.autograd.grad(function(leaf), leaf)
    torch.testing.assert_close(
        eager, backward, rtol=1e-6, atol=1e-7 * value.abs().clamp(min=1).item()
    )
    hessian = torch.func.hessian(function)(tensors[0]).flatten(0, tensors[0].dim() - 1).flatten(1)
    assert hessian.isfinite().all()
    torch.testing.assert_close(
        hessian, hessian.t(), rtol=1e-5, atol=1e-6 * hessian.abs().max().item() + 1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lorentz.frechet_mean", "poincare.frechet_mean"])
def test_second_derivatives_of_the_frechet_mean(name):
    op = TABLE[name]
    x, weights = op.tensors(torch.float64, rows=1)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x, weights = x[0].requires_grad_(), weights[0].requires_grad_()
    function, inputs = (lambda *given: op.call(*given[:2], c=given[2])), (x, weights, c)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4, fast_mode=True)


def test_means_of_no_sets_and_without_data():
    for module, extra in ((lorentz, 1), (poincare, 0)):
        assert module.frechet_mean(torch.zeros(0, 4, 3 + extra), c=1.0).shape == (0, 3 + extra)
        assert module.frechet_mean(torch.zeros(2, 4, 3 + extra, device="meta"), c=1.0).shape == (
            2,
            3 + extra,
        )


@each("c", [0.5, 2.0])
@each("radius, least", [(0.01, -6), (3.0, -4), (8.0, -2)])
def test_pairwise_distances_of_near_points(radius, least, c):
    """Each point beside its neighbour, up to a hundred times the least distance apart, in 64
    dimensions."""
    torch.manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(40, 64, dtype=torch.float64), dim=-1)
    x = lorentz.expmap0(direction * (radius / c**0.5), c)
    step = torch.nn.functional.normalize(torch.randn(40, 64, dtype=torch.float64), dim=-1)
    step = step * torch.logspace(least, least + 2, 40, dtype=torch.float64).unsqueeze(1)
    y = lorentz.expmap(x, lorentz.transp0(x, step, c), c).float()
    x = x.float()
    exact = torch.stack([lorentz.dist(x.double(), row.double().expand(40, -1), c) for row in y], 1)
    a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
    found = lorentz.cdist(a, b, c)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-12)
    weight = torch.randn(40, 40)
    gradients = torch.autograd.grad((found * weight).sum(), (a, b))
    left, right = x.double().requires_grad_(), y.double().requires_grad_()
    exact = torch.stack([lorentz.dist(left, row.expand(40, -1), c) for row in right], 1)
    for g, e in zip(gradients, torch.autograd.grad((exact * weight).sum(), (left, right))):
        torch.testing.assert_close(g.double(), e, rtol=2e-3, atol=2e-3 * e.abs().max().item())
    for itself in (
        lorentz.cdist(x, x, c),
        torch.func.vmap(lambda p: lorentz.cdist(p, p, c))(x.unsqueeze(0))[0],
    ):
        assert (itself.diagonal() == 0).all()
    batch = lorentz.cdist(torch.stack([x, x]), y, torch.tensor([c, c]).view(2, 1, 1))
    torch.testing.assert_close(batch[1], found.detach(), rtol=1e-4, atol=1e-6)


@each("c", [0.5, 2.0])
@each("radius", [0.01, 3.0, 8.0])
def test_pairwise_distances_of_near_points_of_the_ball(radius, c):
    torch.manual_seed(0)
    x = poincare.expmap0(
        torch.nn.functional.normalize(torch.randn(20, 64), dim=-1) * (radius / 2 / c**0.5), c
    )
    y = poincare.expmap(x, torch.randn(20, 64) * 1e-3 / poincare.conformal_factor(x, c), c)
    found = poincare.cdist(x, y, c)
    exact = torch.stack([poincare.dist(x.double(), row.double().expand(20, -1), c) for row in y], 1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-12)
    assert (poincare.cdist(x, x, c).diagonal() == 0).all()


def test_far_and_near_at_once():
    """In float64 too, a point near the origin and one far out."""
    x = lorentz.expmap0(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64), 1.0).expand(50, 4)
    radii = torch.linspace(1, 16, 50, dtype=torch.float64)
    ray = x[:, 1:] / x[:, 1:].norm(dim=-1, keepdim=True)
    y = lorentz.expmap0(ray * radii.unsqueeze(1), 1.0)
    here = x[0, 1:].norm().asinh()
    for start, truth in ((x, (radii - here).abs()), (-x, radii + here)):
        error = (lorentz.dist(start, y, 1.0) - truth).abs()
        assert (error <= 1e-14 + 1e-16 * radii.cosh() ** 2).all()
    single = lorentz.dist(x[:6].float(), y[:6].float(), 1.0).double()
    torch.testing.assert_close(single, lorentz.dist(x[:6], y[:6], 1.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("c", [1e-4, 1.0])
@pytest.mark.parametrize("radius", [100.0, 200.0, 345.0])
@pytest.mark.parametrize("name", ["dist", "logmap"])
def test_float64_up_to_the_cap(name, radius, c, compiling):
    """Products with the squared chord, whose square does not fit, in all forms; gradients and the
    curvature's too."""
    torch.manual_seed(0)
    heading = torch.nn.functional.normalize(torch.randn(8, 5, dtype=torch.float64), dim=-1)
    x, y = lorentz.expmap0(heading * (radius / c**0.5), c).split(4)
    function = getattr(lorentz, name)

    def values(call):
        inputs = [t.clone().requires_grad_() for t in (x, y, torch.tensor(c, dtype=torch.float64))]
        out = call(*inputs)
        return [out, *torch.autograd.grad(out, inputs, 1 / (1 + out.detach().abs()))]

    forms = [values(function), values(torch.func.vmap(function, (0, 0, None)))]
    compiling()
    for found, *others in zip(values(function), *forms):
        for other in others:
            size = found.detach().abs().max().item()
            torch.testing.assert_close(found, other, rtol=0, atol=1e-7 * size)
    assert lorentz.geodesic(0.5, x, y, c).isfinite().all()


@each("radius", [1e-3, 1.0, 10.0, 25.0, 39.0])
def test_gradients_from_the_origin_to_the_cap(radius):
    """In float32 against the closed form, of few rows, and of many, whose gradient one function
    writes."""
    torch.manual_seed(0)
    heading = torch.nn.functional.normalize(torch.randn(6, 5, dtype=torch.float64), dim=-1)
    space = (heading * torch.tensor(radius, dtype=torch.float64).sinh()).float()
    size = space.double().norm(dim=-1, keepdim=True)
    heading, slope = space.double() / size, 1 / (1 + size * size).sqrt()
    x = torch.cat([torch.zeros(6, 1), space], -1)
    for many in (1, 4000):
        points = x.repeat(many, 1).requires_grad_()
        (found,) = torch.autograd.grad(lorentz.dist0(points, 1.0).sum(), points)
        torch.testing.assert_close(found[-6:, 1:].double() / slope, heading, rtol=1e-6, atol=1e-6)
        assert not found[:, 0].any()


@pytest.mark.parametrize("c", [0.4, 1.0])
def test_gradients_of_many_radii(c):
    """By one function; those of the origin are 0, and the curvature's is that of
    ``asinh(sqrt(c) s) / sqrt(c)``."""
    torch.manual_seed(0)
    x = torch.randn(5000, 5, dtype=torch.float64)
    x[7] = 0
    leaf, curvature = (
        x.clone().requires_grad_(),
        torch.tensor(c, dtype=torch.float64, requires_grad=True),
    )
    weight = torch.randn(5000, dtype=torch.float64)
    by_x, by_c = torch.autograd.grad(
        (lorentz.dist0(leaf, curvature) * weight).sum(), (leaf, curvature)
    )
    size = x[:, 1:].norm(dim=-1)
    slope = weight / (1 + c * size**2).sqrt()
    expected = x[:, 1:] * (slope / size).nan_to_num().unsqueeze(-1)
    torch.testing.assert_close(by_x[:, 1:], expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        by_c,
        (slope * size - weight * (c**0.5 * size).asinh() / c**0.5).sum() / (2 * c),
        rtol=1e-10,
        atol=0,
    )
    short = x[:3300].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda y: lorentz.dist0(torch.cat([y, short[1:]]), c)[:1], short[:1], atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_tangent_vectors_far_out_are_finite(dtype):
    """At radius 10 a logarithm has coordinates of 2e5: float16 holds 65504."""
    u = 10 * torch.nn.functional.normalize(torch.randn(20, 3), dim=-1)
    x, y = lorentz.expmap0(u, 1.0).to(dtype), lorentz.expmap0(u.flip(0), 1.0).to(dtype)
    v = lorentz.logmap(x, y, 1.0)
    assert v.isfinite().all() and v.abs().max() >= min(torch.finfo(dtype).max, 1e5)
    assert lorentz.expmap(x, v, 1.0).isfinite().all()
    assert lorentz.transp(x, y, v, 1.0).isfinite().all()


def test_rows_do_not_depend_on_their_blocks(monkeypatch):
    """Far rows of one block take other vectors; results of the others stay what they are."""
    from hypvision.geometry import rows

    torch.manual_seed(0)
    u, w = torch.randn(300, 5), torch.randn(300, 5)
    u[200:230] *= 6
    x, y = lorentz.expmap0(u, 1.0), lorentz.expmap0(w, 1.0)
    v = lorentz.transp0(x, torch.randn(300, 5), 1.0)
    x, y, v = (t.requires_grad_() for t in (x, y, v))
    c = torch.tensor(1.0, requires_grad=True)

    def everything():
        outs = [
            lorentz.dist(x, y, c),
            lorentz.sqdist(x, y, c),
            lorentz.logmap(x, y, c),
            lorentz.transp(x, y, v, c),
        ]
        outs.append(lorentz.expmap(x, v, c))
        return [
            *outs,
            *torch.autograd.grad(
                [o / (1 + o.detach().abs()) for o in outs],
                (x, y, v, c),
                [torch.ones_like(o) for o in outs],
            ),
        ]

    whole = everything()
    monkeypatch.setattr(rows, "BLOCK", 64 * 6)
    for found, expected in zip(everything(), whole):
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-4)
