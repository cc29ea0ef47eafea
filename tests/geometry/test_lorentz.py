"""Shapes that broadcast, far points and coincident ones on the hyperboloid."""

import inspect

import pytest
import torch
from helpers.cases import each

from hypvision.geometry import lorentz, poincare


def test_leading_dimensions_and_curvatures_broadcast():
    x, y = torch.randn(2, 1, 4, 3, dtype=torch.float64), torch.randn(5, 6, 3, dtype=torch.float64)
    d = lorentz.cdist(lorentz.from_space(x, 1.0), lorentz.from_space(y, 1.0), 1.0)
    assert d.shape == (2, 5, 4, 6)
    single = lorentz.cdist(lorentz.from_space(x[1, 0], 1.0), lorentz.from_space(y[2], 1.0), 1.0)
    torch.testing.assert_close(d[1, 2], single)
    c = torch.tensor([0.1, 1.0], dtype=torch.float64).reshape(2, 1, 1)
    both = lorentz.cdist(lorentz.expmap0(x[:, 0], c), lorentz.expmap0(x[:, 0], c), c)
    alone = lorentz.expmap0(x[0, 0], 0.1)
    torch.testing.assert_close(both[0], lorentz.cdist(alone, alone, 0.1))


@pytest.mark.parametrize("apart", [1.0, 1e-3])
def test_distances_of_far_float32_points_in_float64(apart):
    """Those of one product, and those of near points, which are taken again; float32 alone is 1e-6
    off."""
    x = torch.randn(6, 64)
    x, y = (
        lorentz.expmap0(11 * v / v.norm(dim=1, keepdim=True), 1.0)
        for v in (x, x + apart * torch.randn(6, 64))
    )
    truth = lorentz.cdist(x.double(), y.double(), 1.0)
    wide, single = lorentz.cdist(x, y, 1.0, torch.float64), lorentz.cdist(x, y, 1.0)
    assert wide.dtype == torch.float64 and single.dtype == torch.float32
    near = 1e-4 if apart < 1 else 0  # of a chord
    assert ((wide - truth).abs() <= 5e-7 + near * (-truth).exp() * 2**32).all() and (
        single - truth
    ).abs().max() > 5e-7


BROADCAST = [((5, 1, 4), (1, 7, 4)), ((5, 1, 4), (7, 4)), ((4,), (6, 4)), ((6, 4), (4,))]
OF_TWO = [
    "dist",
    "sqdist",
    "logmap",
    "boost",
    "unboost",
    "exterior_angle",
    "expmap",
    "inner",
    "transp",
]


@each("learned", ["no", "one", "several"])
@each("shapes", BROADCAST)
@each("name", OF_TWO)
def test_gradients_of_arguments_that_broadcast(name, shapes, learned):
    """They are those of the same arguments expanded, curvatures too."""
    arguments = [lorentz.expmap0(torch.randn(shape), 0.7) for shape in shapes]
    arguments += arguments[1:] * (name in ("inner", "transp"))
    rows = torch.broadcast_shapes(*(value.shape[:-1] for value in arguments))
    c = 0.7
    if learned == "one":
        c = torch.tensor(0.7)
    if learned == "several":
        c = torch.tensor([0.4, 0.7, 1.1]).reshape(3, *(1 for _ in rows), 1)
        rows = (3, *rows)
    found = []
    for whole in (False, True):
        leaves = [value.clone().requires_grad_() for value in arguments]
        given = [value.expand(*rows, -1).contiguous() if whole else value for value in leaves]
        curvature = c
        if isinstance(c, torch.Tensor):
            leaves.append(c.clone().requires_grad_())
            curvature = leaves[-1].expand(*rows, 1) if whole else leaves[-1]
        out = getattr(lorentz, name)(*given, curvature)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for parted, together in zip(*found, strict=True):
        torch.testing.assert_close(parted, together, rtol=1e-5, atol=1e-5)


@each("curvature", [0.7, (), (6, 1, 1)])
@each("name", ["dist", "sqdist"])
def test_far_points_near_one_ray_among_others(name, curvature):
    """Pairs that lose digits in the form of the others have their own, whatever the shapes: all are
    as in float64."""
    rays, radii = torch.randn(6, 8), torch.tensor([0.3, 4.0, 9.0, 12.0, 14.0, 20.0])[:, None]
    rays = rays / rays.norm(dim=1, keepdim=True)
    c = (
        curvature
        if isinstance(curvature, float)
        else torch.full(curvature, 0.7, dtype=torch.float64)
    )
    x = lorentz.expmap0(radii * rays / 0.7**0.5, 0.7)[:, None]
    y = lorentz.expmap0((radii + 1) * (rays + 1e-6 * torch.randn(6, 8)) / 0.7**0.5, 0.7)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [part.to(dtype).requires_grad_() for part in (x, y)]
        if isinstance(c, torch.Tensor):
            leaves.append(c.to(dtype).requires_grad_())
        out = getattr(lorentz, name)(*leaves[:2], leaves[2] if len(leaves) > 2 else c)
        found.append([out, *torch.autograd.grad(out.log().sum(), leaves)])
    values, truth = found[0].pop(0), found[1].pop(0)
    torch.testing.assert_close(values.double(), truth, rtol=5e-7, atol=0)
    for single, double in zip(*found, strict=True):
        largest = double.abs().amax(-1, keepdim=True)
        assert ((single - double).abs() <= 1e-5 * largest).all()


def test_distances_do_not_depend_on_the_choice_of_unit():
    """Scaling space by s divides the curvature by s^2 and multiplies distances by s."""
    u = torch.randn(5, 4, dtype=torch.float64)
    near, far = (lorentz.expmap0(u * s, 1 / s**2) for s in (1.0, 3.0))
    torch.testing.assert_close(
        lorentz.cdist(far, far, 1 / 9), 3 * lorentz.cdist(near, near, 1.0), rtol=1e-7, atol=1e-6
    )


@pytest.mark.parametrize(
    ("dtype", "powers"), [(torch.float32, range(-44, 17)), (torch.float64, range(-320, 150, 3))]
)
def test_coincident_points_are_at_no_distance(dtype, powers):
    """At every magnitude, where squares underflow too."""
    points = torch.stack(
        [torch.randn(8, 4, dtype=torch.float64) * 10.0**power for power in powers]
    ).to(dtype)
    for c in (0.01, 1.0, 10.0):
        assert (lorentz.dist(points, points.clone(), c) == 0).all()
        assert (poincare.dist(points, points.clone(), c) == 0).all()


# Arguments by name, of the hyperboloid and of the ball: one row of each; those of sets have two.
ROWS = {
    lorentz: dict(
        x=lorentz.from_space(0.3 * torch.ones(1, 3), 1.0),
        y=lorentz.from_space(torch.tensor([[0.2, -0.1, 0.4]]), 1.0),
        space=torch.tensor([[0.2, -0.1, 0.4]]),
        u=torch.tensor([[0.0, 0.1, 0.2, -0.3]]),
        v=torch.tensor([[0.0, 0.3, -0.2, 0.1]]),
        p=torch.tensor([[1.0, 0.0, 0.0]]),
        tau=torch.tensor([0.5]),
        matrix=torch.eye(3)[[1, 0, 2]],
        r=torch.tensor([[1.7]]),
        t=torch.tensor([[0.3]]),
    ),
    poincare: dict(
        x=torch.tensor([[0.1, 0.2, 0.1]]),
        y=torch.tensor([[0.2, -0.1, 0.3]]),
        u=torch.tensor([[0.1, 0.2, -0.3]]),
        v=torch.tensor([[0.3, -0.2, 0.1]]),
        w=torch.tensor([[0.2, 0.2, 0.1]]),
        p=torch.tensor([[1.0, 0.0, 0.0]]),
        tau=torch.tensor([0.5]),
        matrix=torch.eye(3)[[1, 0, 2]],
        r=torch.tensor([[1.7]]),
        t=torch.tensor([[0.3]]),
    ),
}
SPACE_PARTS = {"expmap0", "transp0"}  # their u has no time
FUNCTIONS = [
    (model, name, set(inspect.signature(function).parameters))
    for model in ROWS
    for name, function in vars(model).items()
    if inspect.isfunction(function) and not name.startswith("_")
]
NAMED = [
    (model, name)
    for model, name, names in FUNCTIONS
    if {"c"} < names <= {"c", "dtype", *ROWS[model]}
]


# vectors whose time the operation needs: any vectors, or the change of the time
OF_TIME = {("proju", "v"), ("egrad2rgrad", "v")}


def given_of(model, name):
    """Return the arguments of a function but its curvature: one row of each."""
    names = inspect.signature(getattr(model, name)).parameters
    given = {key: value for key, value in ROWS[model].items() if key in names}
    if model is lorentz and name in SPACE_PARTS:
        given["u"] = given["u"][:, 1:]
    if name in ("cdist", "exterior_angles"):
        given = {key: value[None] for key, value in given.items()}
    return given


@each("model, name", [pair for pair in NAMED if pair[0] is lorentz])
def test_times_of_points_are_not_read(model, name):
    """A point is its space part, and so is a tangent vector: a wrong time changes neither value nor
    gradient, and gets the gradient 0."""
    function = getattr(model, name)
    found = []
    for time in (None, 7.0):
        given = given_of(model, name)
        leaves = []
        for key, value in given.items():
            in_space = name in SPACE_PARTS and key == "u"
            if key in "xyuv" and not in_space and (name, key) not in OF_TIME:
                value = value.clone()
                if time is not None:
                    value[..., 0] = time
                given[key] = value.requires_grad_()
                leaves.append(value)
        out = function(**given, c=0.7)
        grads = torch.autograd.grad(out.square().sum(), leaves) if leaves else ()
        assert all((grad[..., 0] == 0).all() for grad in grads)
        found.append([out, *grads])
    for right, wrong in zip(*found, strict=True):
        assert right.equal(wrong)


@each("model, name", NAMED)
def test_one_row_has_several_curvatures(model, name):
    """As many calls give the same, each with one of them, and so do all gradients."""
    function = getattr(model, name)
    given = {key: value.clone().requires_grad_() for key, value in given_of(model, name).items()}
    c = torch.tensor([0.4, 1.0, 2.5]).reshape(3, *(1,) * (next(iter(given.values())).dim() - 1))
    c.requires_grad_()
    together = function(**given, c=c)
    alone = torch.cat([function(**given, c=c[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    if alone.requires_grad:
        leaves = [c, *given.values()]
        by_all = torch.autograd.grad(together.square().sum(), leaves, allow_unused=True)
        by_each = torch.autograd.grad(alone.square().sum(), leaves, allow_unused=True)
        torch.testing.assert_close(by_all, by_each, rtol=1e-5, atol=1e-6)
