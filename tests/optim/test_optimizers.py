"""What the optimisers promise beyond geoopt: batching, sparse tables, learned curvature, decay,
mixed precision."""

import copy
import io
import itertools
import math

import pytest
import torch
from helpers.cases import each
from torch import nn

from hypvision import geometry, optim
from hypvision.geometry import (
    Euclidean,
    Lorentz,
    Manifold,
    ManifoldParameter,
    PoincareBall,
    Product,
    lorentz,
)
from hypvision.nn import HyperbolicEmbedding, LorentzBatchNorm2d, LorentzConv2d, LorentzMLR
from hypvision.optim import (
    RiemannianAdam,
    RiemannianAdamW,
    RiemannianSGD,
    clip_grad_norm_,
    get_total_norm,
    param_groups,
)
from hypvision.optim import kernels as kernels_module
from hypvision.optim.base import RiemannianOptimizer

OPTIMIZERS = {
    "sgd": lambda p: RiemannianSGD(p, lr=0.05),
    "momentum": lambda p: RiemannianSGD(p, lr=0.02, momentum=0.9),
    "nesterov": lambda p: RiemannianSGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda p: RiemannianAdam(p, lr=0.05),
    "amsgrad": lambda p: RiemannianAdam(p, lr=0.05, amsgrad=True),
    "adamw": lambda p: RiemannianAdamW(p, lr=0.05, weight_decay=0.1),
}
MANIFOLDS = {
    "lorentz": lambda: Lorentz(0.7),
    "ball": lambda: PoincareBall(0.7),
    "exact ball": lambda: PoincareBall(0.7, exact=True),
}
every_optimizer = each("name", OPTIMIZERS)
every_manifold = each("kind", MANIFOLDS)
# What an optimiser adds does not depend on the manifold, nor the manifold's part on the optimiser.
every_one = pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "lorentz") for name in OPTIMIZERS),
        *(("adam", kind) for kind in MANIFOLDS if kind != "lorentz"),
    ],
)


def points(manifold, *size, std=0.5, dtype=torch.float64):
    return ManifoldParameter(
        manifold.from_tangent0(std * torch.randn(*size, dtype=dtype)), manifold
    )


@pytest.mark.quick("sgd-lorentz", "adamw-lorentz", "adam-ball")
@every_one
def test_finds_the_frechet_mean(name, kind):
    torch.manual_seed(1)
    manifold = MANIFOLDS[kind]()
    data = points(manifold, 20, 3, std=1.0).detach()
    mean = points(manifold, 1, 3)
    optimizer = OPTIMIZERS[name]([mean])
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    for step in range(160):
        if step == 80:
            optimizer.param_groups[0]["lr"] /= 10
        optimizer.zero_grad()
        manifold.dist(mean, data).square().mean().backward()
        optimizer.step()
    manifold.check_point(mean)
    assert manifold.dist(mean, manifold.frechet_mean(data)).item() < 2e-3


@every_manifold
@pytest.mark.parametrize("along", [True, False])
def test_momentum_is_parallel_transported(kind, along):
    """One step of a kernel against exponential map and transport of the manifold."""
    torch.manual_seed(2)
    manifold = MANIFOLDS[kind]()
    kernel = kernels_module.kernel_of(manifold)
    x = points(manifold, 8, 4, std=1.5).detach()
    m = torch.randn(8, 4, dtype=torch.float64)
    d = -0.6 * m if along else torch.randn(8, 4, dtype=torch.float64)
    # tangent vectors in frames have the norm 2 |v| at the origin of the ball
    out = (
        (lambda p, v: manifold.transp0(p, v))
        if kind == "lorentz"
        else (lambda p, v: manifold.transp0(p, v) / 2)
    )
    y = manifold.retr(x, out(x, d))
    expected = manifold.transp(x, y, out(x, m))
    moved, momentum = x.clone(), m.clone()
    _, where = kernel.gradient(moved, torch.zeros_like(moved), manifold.c)
    if along:
        kernel.step_(
            moved, momentum, torch.full((8,), 0.6, dtype=torch.float64), momentum, where, manifold.c
        )
    else:
        kernel.step_(moved, -2 * d, 0.5, momentum, where, manifold.c)
    torch.testing.assert_close(moved, y)
    torch.testing.assert_close(out(moved, momentum), expected)
    torch.testing.assert_close(momentum.norm(dim=-1), m.norm(dim=-1))


@each("radius", [1e-3, 1.0, 6.0])
def test_float32_momentum_far_out(radius):
    """A momentum after a step in float32 against transport in float64, whose error there is
    1e-11."""
    torch.manual_seed(2)
    manifold = Lorentz(0.7)
    kernel = kernels_module.kernel_of(manifold)
    m = torch.randn(8, 4)
    x = manifold.expmap0(radius * torch.nn.functional.normalize(torch.randn(8, 4), dim=-1))
    start, vector = manifold.projx(x.double()), m.double()
    y = manifold.expmap(start, manifold.transp0(start, -0.3 * vector))
    expected = manifold.transp0back(y, manifold.transp(start, y, manifold.transp0(start, vector)))
    _, where = kernel.gradient(x, torch.zeros_like(x), manifold.c)
    kernel.step_(x, m, 0.3, m, where, manifold.c)
    torch.testing.assert_close(m.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(x.double(), y, rtol=2e-6, atol=1e-9)


@each("kind", ["ball", "exact ball"])
@each("radius", [1e-3, 1.0, 6.0, 11.0, 20.0])
def test_float32_momentum_in_the_ball(kind, radius):
    """A momentum after a step in float32 against transport in float64 to where the point is, up to
    the boundary."""
    torch.manual_seed(2)
    manifold = MANIFOLDS[kind]()
    kernel = kernels_module.kernel_of(manifold)
    m = torch.randn(8, 4)
    x = manifold.projx(
        manifold.expmap0(radius / 2 * torch.nn.functional.normalize(torch.randn(8, 4), dim=-1))
    )
    start, vector = x.double(), m.double()
    _, where = kernel.gradient(x, torch.zeros_like(x), manifold.c)
    kernel.step_(x, m, 0.3, m, where, manifold.c)
    expected = 2 * manifold.transp0back(
        x.double(), manifold.transp(start, x.double(), manifold.transp0(start, vector / 2))
    )
    torch.testing.assert_close(m.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(m.norm(dim=-1).double(), vector.norm(dim=-1), rtol=1e-5, atol=0)


def test_a_point_at_the_largest_radius_stays_with_its_momentum():
    """Outwards the momentum keeps its length however long the step is that the radius cuts."""
    manifold = Lorentz(1.0)
    kernel = kernels_module.kernel_of(manifold)
    x, m = manifold.expmap0(torch.tensor([[39.5, 0.0]])), torch.tensor([[-30.0, 0.0]])
    for _ in range(3):
        _, where = kernel.gradient(x, torch.zeros_like(x), manifold.c)
        kernel.step_(x, m, 1.0, m, where, manifold.c)
        torch.testing.assert_close(m, torch.tensor([[-30.0, 0.0]]), rtol=1e-5, atol=0)
        torch.testing.assert_close(manifold.dist0(x), torch.tensor([40.0]), rtol=1e-5, atol=0)


@every_manifold
def test_gradient_in_the_frame(kind):
    manifold = MANIFOLDS[kind]()
    x, grad = points(manifold, 8, 4, std=1.5).detach(), None
    grad = torch.randn_like(x)
    found, _ = kernels_module.kernel_of(manifold).gradient(x, grad, manifold.c, decay=0.3)
    rgrad = manifold.egrad2rgrad(x, grad + 0.3 * x)
    expected = manifold.transp0back(x, rgrad) * (1 if kind == "lorentz" else 2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.norm(dim=-1), manifold.norm(x, rgrad))


@each("radius", [1e-3, 1.0, 8.0, 15.0])
def test_float32_steps_far_out(radius):
    """A step tangential to the radius keeps its intrinsic length in float32, where coordinates are
    huge."""
    manifold = Lorentz(1.0)
    x = manifold.expmap0(torch.tensor([[radius, 0.0, 0.0]]))
    parameter = ManifoldParameter(x.clone(), manifold)
    space = torch.tensor([[0.0, 1.0, 0.5]])
    parameter.grad = torch.cat([torch.zeros(1, 1), space], -1)
    RiemannianSGD([parameter], lr=0.1).step()
    expected = 0.1 * space.norm()
    double = manifold.dist(parameter.double(), x.double())
    torch.testing.assert_close(double.item(), expected.item(), rtol=1e-3, atol=0)


WIDE_OPTIMIZERS = {
    "sgd": (RiemannianSGD, {}),
    "momentum": (RiemannianSGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (RiemannianSGD, {"momentum": 0.9, "nesterov": True}),
    "geoopt's first step": (RiemannianSGD, {"momentum": 0.9, "geoopt_first_step": True}),
    "adam": (RiemannianAdam, {}),
    "adam with decay": (RiemannianAdam, {"weight_decay": 0.1}),
    "amsgrad": (RiemannianAdam, {"amsgrad": True}),
    "adamw": (RiemannianAdamW, {"weight_decay": 0.1}),
}
WIDE_MANIFOLDS = {
    **MANIFOLDS,
    "curved a little": lambda: Lorentz(0.01),
    "curved a lot": lambda: PoincareBall(1e4),
    "learned lorentz": lambda: Lorentz(0.7, learnable=True),
    "learned ball": lambda: PoincareBall(0.7, learnable=True),
    "product": lambda: Product((Lorentz(0.7), 2), (PoincareBall(0.7), 2)),
}


def test_every_optimizer_and_manifold_is_tried():
    members = [getattr(module, name) for module in (geometry, optim) for name in module.__all__]
    kinds = [
        m for m in members if isinstance(m, type) and issubclass(m, (Manifold, RiemannianOptimizer))
    ]
    tried = {kind for kind, _ in WIDE_OPTIMIZERS.values()} | {
        type(make()) for make in WIDE_MANIFOLDS.values()
    }
    assert tried == set(kinds) - {Manifold, Euclidean}  # flat space has torch's rules


# Every optimiser on both models of the space, and on every manifold one with momentum and one that
# adapts.
@each(
    "name, kind",
    [
        *itertools.product(WIDE_OPTIMIZERS, ["lorentz", "ball"]),
        *((name, kind) for name in ("momentum", "adam") for kind in list(WIDE_MANIFOLDS)[2:]),
    ],
)
def test_points_stay_on_the_manifold(name, kind):
    """At any learning rate and gradient: products of two float32 numbers must not overflow, all
    else may happen."""
    torch.manual_seed(0)
    optimizer_class, options = WIDE_OPTIMIZERS[name]
    u = torch.randn(10, 4)
    u *= torch.tensor([0.0, 1e-20, 1e-3, 1.0, 1.0, 3.0, 8.0, 11.0, 30.0, 30.0]).unsqueeze(
        1
    ) / u.norm(dim=-1, keepdim=True)
    for lr, scale in itertools.product([1e-5, 1e8], [0.0, 1e-20, 1.0, 1e18]):
        for start in (u, u[1:5]) if lr < 1e8 else (u, u.double()):
            manifold = WIDE_MANIFOLDS[kind]()
            parameter = ManifoldParameter(manifold.from_tangent0(start).detach(), manifold)
            curvature = list(manifold.parameters())
            optimizer = optimizer_class([parameter, *curvature], lr=lr, **options)
            for sign in (1, 1, -1):
                parameter.grad = sign * scale * torch.randn_like(parameter)
                for log_c in curvature:
                    log_c.grad = sign * scale * torch.randn_like(log_c)
                optimizer.step()
                manifold.check_point(parameter.detach())
                assert all(
                    state.isfinite().all() for state in optimizer.state[parameter].values()
                ), (lr, scale)
                assert parameter.isfinite().all(), (lr, scale)


@every_one
def test_batching_changes_nothing(name, kind, monkeypatch):
    """Many small parameters updated as one table, one by one, and a large one in blocks."""
    torch.manual_seed(3)
    manifold = MANIFOLDS[kind]()
    start = points(manifold, 500, 3).detach()
    grads = [torch.randn_like(start) for _ in range(3)]

    def run(parameters, slices):
        optimizer = OPTIMIZERS[name](parameters)
        for grad in grads:
            for parameter, part in zip(parameters, slices):
                parameter.grad = grad[part].reshape(parameter.shape)
            optimizer.step()
        return torch.cat([p.detach().reshape(-1, start.shape[-1]) for p in parameters])

    whole = run([ManifoldParameter(start.clone(), manifold)], [slice(None)])
    slices = [slice(0, 1), slice(1, 200), slice(200, 500)]
    table = run([ManifoldParameter(start[s].clone(), manifold) for s in slices], slices)
    single = torch.cat([run([ManifoldParameter(start[s].clone(), manifold)], [s]) for s in slices])
    vector = [ManifoldParameter(start[0].clone(), manifold)]
    torch.testing.assert_close(table, whole)
    torch.testing.assert_close(single, whole)
    torch.testing.assert_close(run(vector, [0]), whole[:1])
    monkeypatch.setattr("hypvision.optim.base.SMALL", 0)
    monkeypatch.setattr("hypvision.optim.base.BLOCK", 64 * start.shape[-1])
    torch.testing.assert_close(
        run([ManifoldParameter(start.clone(), manifold)], [slice(None)]), whole
    )


@each("kind", [*MANIFOLDS, "flat"])
@each("name", ["sgd", "momentum", "nesterov", "adam", "amsgrad"])
def test_sparse_tables(name, kind):
    """Rows with a gradient move as in a table of their own, the others stay bit by bit, and so do
    their moments."""
    torch.manual_seed(4)
    manifold = MANIFOLDS.get(kind, Euclidean)()
    table = HyperbolicEmbedding(10, 3, manifold, sparse=True).double()
    if kind == "flat":
        table.weight = nn.Parameter(table.weight.detach().clone())
    start = table.weight.detach().clone()
    rows = torch.tensor([1, 4, 4, 7])
    wrap = (lambda p: ManifoldParameter(p, manifold)) if kind != "flat" else nn.Parameter
    small = wrap(start[[1, 4, 7]].clone())
    optimizer, other = OPTIMIZERS[name]([table.weight]), OPTIMIZERS[name]([small])
    for _ in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        (table(rows) - 0.3).square().sum().backward()
        (small[[0, 1, 1, 2]] - 0.3).square().sum().backward()
        assert table.weight.grad.is_sparse
        optimizer.step()
        other.step()
    torch.testing.assert_close(table.weight[[1, 4, 7]], small)
    rest = [0, 2, 3, 5, 6, 8, 9]
    assert torch.equal(table.weight[rest], start[rest])
    for key, value in optimizer.state[table.weight].items():
        if key != "step":
            assert not value[rest].any(), key


def test_sparse_needs_no_weight_decay():
    table = HyperbolicEmbedding(10, 3, Lorentz(), sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="weight_decay"):
        RiemannianAdam(table.parameters(), weight_decay=0.1).step()


def test_mixed_groups_and_euclidean_rule():
    """Euclidean parameters in the same group follow torch's optimisers bit by bit."""
    for ours, torchs, options in (
        (
            RiemannianSGD,
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        ),
        (RiemannianAdam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
        (RiemannianAdamW, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.01, "amsgrad": True}),
    ):
        torch.manual_seed(5)
        weight = nn.Parameter(torch.randn(4, 3))
        copied = nn.Parameter(weight.detach().clone())
        x = points(Lorentz(), 5, 2, dtype=torch.float32)
        mine, theirs = ours([weight, x], **options), torchs([copied], **options)
        for _ in range(4):
            for optimizer, parameter in ((mine, weight), (theirs, copied)):
                optimizer.zero_grad()
                parameter.pow(4).sum().backward()
                x.grad = torch.randn_like(x)
                optimizer.step()
        assert torch.equal(weight, copied)


@every_optimizer
def test_manifolds_mix_in_a_group(name):
    """Points of all sorts and weights in one group move as in groups of their own."""
    torch.manual_seed(5)
    kinds = [
        Lorentz(0.7),
        PoincareBall(0.7),
        Lorentz(1.3),
        PoincareBall(0.7, exact=True),
        Euclidean(),
    ]
    starts = [points(m, 4, 3).detach() for m in kinds] + [torch.randn(4, 3, dtype=torch.float64)]
    wraps = [lambda p, m=m: ManifoldParameter(p, m) for m in kinds] + [nn.Parameter]
    mixed = [wrap(start.clone()) for wrap, start in zip(wraps, starts)]
    alone = [wrap(start.clone()) for wrap, start in zip(wraps, starts)]
    optimizers = [OPTIMIZERS[name](mixed), *(OPTIMIZERS[name]([p]) for p in alone)]
    for _ in range(3):
        for one, other in zip(mixed, alone):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, manifold in zip(mixed, alone, kinds):
        torch.testing.assert_close(one.detach(), other.detach())
        manifold.check_point(one.detach())
    torch.testing.assert_close(mixed[-1], alone[-1])


@every_optimizer
def test_foreach_changes_nothing(name):
    torch.manual_seed(6)
    manifold = Lorentz(0.7)
    start, weights = points(manifold, 6, 3).detach(), [torch.randn(4, 3), torch.randn(5)]
    grads = [torch.randn_like(start), *(torch.randn_like(w) for w in weights)]
    found = []
    for foreach in (True, False, None):
        parameters = [
            ManifoldParameter(start.clone(), manifold),
            *(nn.Parameter(w.clone()) for w in weights),
        ]
        optimizer = OPTIMIZERS[name](parameters)
        optimizer.param_groups[0]["foreach"] = foreach
        for _ in range(4):
            for parameter, grad in zip(parameters, grads):
                parameter.grad = grad.clone()
            optimizer.step()
        found.append([p.detach() for p in parameters])
    for one, other in zip(found[0] * 2, found[1] + found[2]):
        torch.testing.assert_close(one, other)
        assert (one != 0).any()


@pytest.mark.parametrize("manifold", [None, Lorentz(0.7)])
def test_capturable_on_a_cpu_is_explained(manifold):
    parameter = nn.Parameter(torch.randn(3)) if manifold is None else points(manifold, 2, 2)
    start = parameter.detach().clone()
    optimizer = RiemannianAdam([parameter], lr=0.1, capturable=True)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="capturable=True is for CUDA graphs.*CPU"):
        optimizer.step()
    assert torch.equal(parameter, start)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("kind", [RiemannianAdam, RiemannianAdamW])
def test_capturable_steps_inside_a_graph(kind):
    torch.manual_seed(0)
    manifold = Lorentz(0.7)
    start = manifold.random(6, 3, dtype=torch.float64, device="cuda")
    eager, captured = (ManifoldParameter(start.clone(), manifold) for _ in range(2))
    grad = torch.randn_like(start)
    optimizers = kind([eager], lr=0.1), kind([captured], lr=0.1, capturable=True)
    for parameter in (eager, captured):
        parameter.grad = grad.clone()
    for optimizer in optimizers:  # the first step fills the states
        optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[1].step()
    for _ in range(3):
        optimizers[0].step()
        graph.replay()
    torch.testing.assert_close(captured.detach(), eager.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_steps_as_tensors(dtype, monkeypatch):
    """The path of ``capturable``, in which counts of steps stay tensors, on a CPU."""
    torch.manual_seed(0)
    monkeypatch.setattr(RiemannianAdam, "check_device", RiemannianOptimizer.check_device)
    start = points(Lorentz(0.7), 6, 3, dtype=dtype).detach()
    found = []
    for capturable in (False, True):
        parameter = ManifoldParameter(start.clone(), Lorentz(0.7))
        optimizer = RiemannianAdam([parameter], lr=0.1, amsgrad=True, capturable=capturable)
        for i in range(4):
            parameter.grad = torch.full_like(parameter, 0.1 * (i + 1))
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@every_optimizer
def test_state_dict_continues(name):
    torch.manual_seed(6)
    manifold = Product((Lorentz(0.7), 3), (PoincareBall(0.7), 2))
    start = points(manifold, 4, 5).detach()
    grads = [torch.randn_like(start) for _ in range(6)]

    def advance(parameter, optimizer, some):
        for grad in some:
            parameter.grad = grad
            optimizer.step()

    x = ManifoldParameter(start.clone(), manifold)
    optimizer = OPTIMIZERS[name]([x])
    advance(x, optimizer, grads[:3])
    file = io.BytesIO()
    torch.save({"x": x.detach(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    y = ManifoldParameter(saved["x"].clone(), manifold)
    other = OPTIMIZERS[name]([y])
    other.load_state_dict(saved["optimizer"])
    advance(x, optimizer, grads[3:])
    advance(y, other, grads[3:])
    assert torch.equal(x, y)
    copy.deepcopy(optimizer)


def test_closure_scheduler_and_gradients_untouched():
    x = points(Lorentz(), 5, 2)
    optimizer = RiemannianSGD([x], lr=0.1, momentum=0.9, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure():
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        closure.grad = x.grad.clone()
        return loss

    loss = optimizer.step(closure)
    scheduler.step()
    assert loss.item() > 0
    assert torch.equal(x.grad, closure.grad)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_maximize():
    manifold = PoincareBall()
    x = points(manifold, 5, 2)
    before = manifold.dist0(x).detach()
    optimizer = RiemannianAdam([x], lr=0.1, maximize=True)
    manifold.dist0(x).sum().backward()
    optimizer.step()
    assert (manifold.dist0(x) > before).all()


def test_adamw_decay():
    """Without a gradient AdamW's step is its decay: a centroid with the origin, a Moebius
    multiple."""
    torch.manual_seed(7)
    share = 0.1 * 0.3
    for manifold in (Lorentz(0.7), PoincareBall(0.7)):
        x = points(manifold, 6, 3, std=2.0)
        start = x.detach().clone()
        x.grad = torch.zeros_like(x)
        RiemannianAdamW([x], lr=0.1, weight_decay=0.3).step()
        if isinstance(manifold, Lorentz):
            pair = torch.stack(
                [start, manifold.origin(3, dtype=torch.float64).expand_as(start)], -2
            )
            weights = torch.tensor([1 - share, share], dtype=torch.float64).expand(6, 2)
            expected = manifold.centroid(pair, weights)
        else:
            expected = manifold.mobius_scalar_mul(1 - share, start)
        torch.testing.assert_close(x.detach(), expected)


# Learned curvature


def curved(move, kind=Lorentz):
    torch.manual_seed(8)
    manifold = kind(0.7, learnable=True)
    x = points(manifold, 6, 3, std=1.0)
    optimizer = RiemannianAdam(
        [{"params": [x], "lr": 0.01}, {"params": [manifold.log_c], "lr": 0.05}], lr=0.1, move=move
    )
    return manifold, x, optimizer


@pytest.mark.parametrize("kind", [Lorentz, PoincareBall])
def test_points_follow_the_curvature(kind):
    """Everything moves with the old curvature first; then the tangent vectors at the origin
    stay."""
    manifold, x, optimizer = curved("tangent", kind)
    before = manifold.c.item()
    other_manifold, other, frozen = curved("tangent", kind)
    for parameter, space, optimizer_ in ((x, manifold, optimizer), (other, other_manifold, frozen)):
        space.dist0(parameter).sum().backward()
        if optimizer_ is frozen:
            space.log_c.grad = None  # the same step without the curvature's
        optimizer_.step()
    after = manifold.c.item()
    assert abs(after - before) > 0.01
    manifold.check_point(x)
    torch.testing.assert_close(
        manifold.to_tangent0(x.detach()),
        other_manifold.to_tangent0(other.detach()),
        rtol=1e-6,
        atol=1e-7,
    )


def test_momentum_follows_the_curvature():
    """In the frame a momentum stays what it is: transported to the origin with the old curvature,
    out with the new."""
    manifold, x, optimizer = curved("tangent")
    manifold.dist0(x).sum().backward()
    optimizer.step()
    momentum = optimizer.state[x]["exp_avg"].clone()
    ambient = manifold.transp0(x.detach(), momentum)
    old = manifold.c.detach().clone()
    x.grad = None
    manifold.log_c.grad = torch.ones(())
    optimizer.step()
    assert torch.equal(optimizer.state[x]["exp_avg"], momentum)
    moved = manifold.transp0(x.detach(), momentum)
    assert not torch.allclose(moved, ambient)
    previous = lorentz.change_curvature(x.detach(), manifold.c.detach(), old)
    torch.testing.assert_close(
        lorentz.transp0(x.detach(), lorentz.transp0back(previous, ambient, old),
        manifold.c.detach()),
        moved, rtol=1e-6, atol=1e-7,
    )  # fmt: skip


@pytest.mark.parametrize(("move", "kept"), [("scale", "shape"), ("project", "space")])
def test_other_moves(move, kept):
    manifold, x, optimizer = curved(move)
    start, old = x.detach().clone(), manifold.c.item()
    manifold.log_c.grad = torch.ones(())
    optimizer.step()
    manifold.check_point(x)
    expected = start[:, 1:] * (math.sqrt(old / manifold.c.item()) if kept == "shape" else 1.0)
    torch.testing.assert_close(x.detach()[:, 1:], expected, rtol=1e-6, atol=1e-7)


def test_points_without_gradient_follow_and_without_change_not_a_bit_moves():
    manifold, x, optimizer = curved("tangent")
    start = x.detach().clone()
    manifold.log_c.grad = torch.zeros(())
    optimizer.step()
    assert torch.equal(x, start)
    manifold.log_c.grad = torch.ones(())
    optimizer.step()
    manifold.check_point(x)
    assert not torch.equal(x, start)


def test_curvature_is_clamped():
    manifold, x, _ = curved("tangent")
    optimizer = RiemannianSGD([x, manifold.log_c], lr=100.0)
    manifold.log_c.grad = torch.ones(())
    optimizer.step()
    assert manifold.c.item() == pytest.approx(0.07, rel=1e-5)
    manifold.check_point(x)


def test_training_with_learned_curvature_stays_sound():
    """A small network of conv, batch norm and hyperplanes, curvature learned at a high rate, in
    bfloat16."""
    torch.manual_seed(9)
    manifold = Lorentz(1.0, learnable=True)
    network = nn.Sequential(
        LorentzConv2d(3, 8, 3, manifold, padding=1),
        LorentzBatchNorm2d(8, manifold),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        LorentzMLR(8, 4, manifold),
    )
    groups = param_groups(network, lr=0.05, weight_decay=1e-3, curvature_lr=0.05)
    optimizer = RiemannianSGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    x, labels = torch.randn(32, 3, 8, 8), torch.randint(4, (32,))
    x += labels[:, None, None, None] * torch.tensor([0.5, -0.3, 0.2]).view(1, 3, 1, 1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
        manifold.check_point(network[1].beta)
    assert all(math.isfinite(value) for value in losses)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert manifold.c.item() != 1.0


# Clipping, scaling, groups, registries


@every_manifold
def test_clipping_by_the_riemannian_norm(kind):
    manifold = MANIFOLDS[kind]()
    x, weight = (
        points(manifold, 6, 3, std=2.0),
        nn.Parameter(torch.randn(3, 4, dtype=torch.float64)),
    )
    x.grad, weight.grad = torch.randn_like(x), torch.randn_like(weight)
    rgrad = manifold.egrad2rgrad(x.detach(), x.grad)
    expected = (manifold.norm(x.detach(), rgrad).square().sum() + weight.grad.square().sum()).sqrt()
    torch.testing.assert_close(get_total_norm([x, weight]), expected)
    direction = x.grad.clone()
    total = clip_grad_norm_([x, weight], 0.5)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(get_total_norm([x, weight]).item(), 0.5, rtol=1e-5, atol=0)
    torch.testing.assert_close(x.grad, direction * 0.5 / expected, rtol=1e-5, atol=1e-9)
    x.grad[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="norm of the gradients"):
        clip_grad_norm_([x, weight], 0.5, error_if_nonfinite=True)
    assert clip_grad_norm_([nn.Parameter(torch.ones(1))], 1.0) == 0


def test_grad_scaler_skips_and_unscales():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    manifold = Lorentz()
    x, y = (points(manifold, 5, 2, dtype=torch.float32) for _ in range(2))
    y.data.copy_(x.data)
    scaled, plain = RiemannianAdam([x], lr=0.1), RiemannianAdam([y], lr=0.1)
    scaler.scale(manifold.dist0(x).sum()).backward()
    scaler.step(scaled)
    scaler.update()
    manifold.dist0(y).sum().backward()
    plain.step()
    torch.testing.assert_close(x, y)
    start = x.detach().clone()
    x.grad = torch.full_like(x, math.inf)
    scaler.scale(torch.ones(1))
    scaler.step(scaled)
    scaler.update()
    assert torch.equal(x, start)
    assert scaler.get_scale() == 512.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.manifold = Lorentz(learnable=True)
        self.conv = LorentzConv2d(3, 4, 3, self.manifold)
        self.norm = LorentzBatchNorm2d(4, self.manifold)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))

    def no_weight_decay(self):
        return {"token"}


def test_param_groups():
    model = Model()
    groups = {
        g["name"]: g
        for g in param_groups(
            model, lr=0.1, weight_decay=0.05, manifold_lr_scale=0.2, curvature_lr=1e-4
        )
    }
    ids = {id(p): name for name, p in model.named_parameters()}
    named = {kind: sorted(ids[id(p)] for p in g["params"]) for kind, g in groups.items()}
    assert named["weights"] == ["conv.weight"]
    assert named["points"] == ["norm.beta"]
    assert named["curvatures"] == ["manifold.log_c"]
    assert {"token", "conv.bias", "norm.gamma"} <= set(named["no_weight_decay"])
    assert groups["points"]["lr"] == pytest.approx(0.02)
    assert (groups["curvatures"]["lr"], groups["curvatures"]["weight_decay"]) == (1e-4, 0.0)
    assert groups["no_weight_decay"]["weight_decay"] == 0.0
    assert sum(len(g["params"]) for g in groups.values()) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="Give lr"):
        param_groups(model, manifold_lr_scale=0.2)
    for names in ("norm.beta", ["norm.*", "conv.weight"]):  # of points, too
        spared = {
            g["name"]: g for g in param_groups(model, weight_decay=0.05, no_weight_decay=names)
        }
        assert "points" not in spared and spared["points_no_weight_decay"]["params"] == [
            model.norm.beta
        ]
        assert spared["points_no_weight_decay"]["weight_decay"] == 0 and ("weights" in spared) == (
            names == "norm.beta"
        )
    assert "points" in {g["name"] for g in param_groups(model, no_weight_decay="norm.beta")}


def test_frozen_points_follow_a_learned_curvature():
    model, still = (
        Model(),
        ManifoldParameter(Lorentz(1.0).random(2, 2), Lorentz(1.0), requires_grad=False),
    )
    model.norm.beta.requires_grad_(False)
    model.still = still
    grouped = {id(p) for group in param_groups(model) for p in group["params"]}
    assert id(model.norm.beta) in grouped and id(still) not in grouped
    model.norm.beta.data.copy_(model.manifold.random(4))
    optimizer = RiemannianAdamW(param_groups(model), lr=0.1)
    model.manifold.log_c.grad = torch.tensor(1.0)
    optimizer.step()
    assert model.manifold.c.item() < 0.95
    model.manifold.check_point(model.norm.beta)


@each("kind", [RiemannianSGD, RiemannianAdam, RiemannianAdamW])
def test_curvatures_get_no_weight_decay(kind):
    manifold = Lorentz(0.1, learnable=True)
    optimizer = kind(manifold.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(5):
        manifold.log_c.grad = torch.tensor(0.0)
        optimizer.step()
    assert manifold.c.item() == pytest.approx(0.1)
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


@each("name", ["riemanniansgd", "riemannianadam", "riemannianadamw"])
def test_timm_factory(name):
    from timm.optim import create_optimizer_v2

    model = Model()
    optimizer = create_optimizer_v2(model, name, lr=0.1, weight_decay=0.05)
    assert isinstance(optimizer, RiemannianOptimizer)
    model.norm(model.conv(torch.randn(2, 3, 6, 6))).square().sum().backward()
    optimizer.step()
    model.manifold.check_point(model.norm.beta)
    assert optimizer.param_groups[0]["weight_decay"] == 0
    groups = create_optimizer_v2(model, name, lr=0.1, param_group_fn=param_groups).param_groups
    assert [g["name"] for g in groups] == ["weights", "no_weight_decay", "points", "curvatures"]


@each(
    "make, message",
    [
        (lambda p: RiemannianSGD(p, lr=-1), "lr"),
        (lambda p: RiemannianSGD(p, nesterov=True), "nesterov"),
        (lambda p: RiemannianSGD(p, move="jump"), "move"),
        (lambda p: RiemannianAdam(p, betas=(1.0, 0.9)), "betas"),
        (lambda p: RiemannianAdam(p, eps=-1.0), "eps"),
        (lambda p: RiemannianAdamW(p, weight_decay=-1.0), "weight_decay"),
        (
            lambda p: RiemannianAdam(p, lr=math.nan),
            "lr must be a finite number of at least 0, got nan",
        ),
        (lambda p: RiemannianAdam(p, lr=math.inf), "lr must be"),
        (lambda p: RiemannianAdam(p, lr=torch.tensor(-0.1)), "lr"),
        (lambda p: RiemannianAdam(p, betas=(0.9,)), "betas must be a pair"),
        (lambda p: RiemannianAdam(p, betas=0.9), "betas must be a pair"),
        (lambda p: RiemannianAdam(p, betas=(0.9, -0.1)), "betas must be a pair"),
        (lambda p: RiemannianSGD(p, momentum=-0.1), "momentum"),
        (lambda p: RiemannianSGD(p, dampening=-0.1), "dampening"),
        # options of a group count as those of the constructor
        (lambda p: RiemannianAdam([{"params": p, "lr": -1.0}]), "lr"),
        (lambda p: RiemannianAdam([{"params": p, "betas": (0.9, 1.0)}]), "betas .* below 1"),
        (lambda p: RiemannianSGD([{"params": p, "nesterov": True}]), "nesterov"),
        (lambda p: RiemannianSGD([{"params": p, "move": "jump"}]), "move"),
        (lambda p: clip_grad_norm_(p, -1.0), "max_norm must be a number of at least 0, got -1.0"),
        (lambda p: clip_grad_norm_(p, math.nan), "max_norm"),
        (lambda p: clip_grad_norm_(p, 1.0, norm_type=0), "norm_type must be positive"),
        (lambda p: get_total_norm(p, -2), "norm_type"),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make([points(Lorentz(), 2, 2)])


@each("value", ["0.1", None, torch.ones(2), True])
def test_rates_are_numbers(value):
    with pytest.raises(ValueError, match="lr must be a finite number of at least 0"):
        RiemannianSGD([points(Lorentz(), 2, 2)], lr=value)


def test_wrong_parameters_are_explained():
    parameter = nn.Parameter(torch.zeros(3, 4))
    parameter.manifold = Product((Lorentz(), 3), (Lorentz(), 3))
    with pytest.raises(ValueError, match="too few coordinates"):
        RiemannianSGD([parameter])

    class Sphere(Manifold):
        pass

    points = ManifoldParameter(torch.zeros(3, 4), Sphere())
    points.grad = torch.ones(3, 4)
    with pytest.raises(TypeError, match="Sphere.*egrad2rgrad"):
        RiemannianSGD([points]).step()


@each("kind", [Lorentz, PoincareBall])
@each("optimizer", [RiemannianSGD, RiemannianAdam])
def test_empty_tables_stay_empty(kind, optimizer):
    manifold = kind(1.0)
    parameter = ManifoldParameter(torch.zeros(0, 3 + manifold.extra), manifold)
    parameter.grad = torch.zeros_like(parameter)
    optimizer([parameter], lr=0.1).step()
    assert parameter.numel() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_points_are_refused(dtype):
    parameter = ManifoldParameter(torch.zeros(2, 4, dtype=dtype), Lorentz(1.0))
    parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(TypeError, match="Points must be float32 or float64"):
        RiemannianSGD([parameter], lr=0.1).step()


@each("transposed", [True, False])
def test_points_that_are_not_contiguous_take_the_same_steps(transposed):
    manifold = geometry.Lorentz(1.0)
    points = manifold.random(4, 5, 3)
    start = points.transpose(0, 1) if transposed else points[:, ::2]
    found = []
    for data in (start, start.contiguous()):
        parameter = geometry.ManifoldParameter(data, manifold)
        optimizer = optim.RiemannianAdam([parameter], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            manifold.dist0(parameter).sum().backward()
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found)
    assert not torch.equal(found[0], start)
