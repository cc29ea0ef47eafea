"""Operations with a backward by hand against plain ones, and all against geometry and the published
formulas."""

import pytest
import torch
from helpers.cases import each

from hypvision.geometry import lorentz
from hypvision.helm import rows

N, WIDTH = 9, 16


def made(*shape, seed=0, timeless=True):
    """Rows with zeros behind the space, and in the slot of the time unless they are points."""
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[..., N:] = 0
    return x if timeless else rows.lift(x, N)


def both(function, *inputs):
    """Values and gradients, by hand and in plain operations; ``inputs`` may hold None."""
    found = []
    for fused in (True, False):
        given = [x.clone().requires_grad_() for x in inputs]
        # a product's result, which may be written into, not a leaf
        out = function(*(x * 1 for x in given), fused=fused)
        out = [o for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
        generator = torch.Generator().manual_seed(5)
        loss = sum(
            (o * torch.randn(o.shape, dtype=o.dtype, generator=generator)).sum() for o in out
        )
        grads = torch.autograd.grad(loss, given)
        found.append([*out, *grads])
    return found


@each("w", [1.0, 0.4, -0.3])
@each("gained", [True, False])
def test_residual(w, gained):
    gain = torch.zeros(WIDTH, dtype=torch.float64)
    gain[:N] = torch.linspace(0.5, 2, N)
    weight = torch.tensor([w], dtype=torch.float64)
    x, u = made(2, 5, WIDTH, timeless=False), made(2, 5, WIDTH, seed=1)

    def step(x, u, weight, *gain, fused):
        out, h = rows.residual_norm(
            x, u, weight, gain[0] if gain else None, N, N, 4.5, 1e-8, True, fused
        )
        return (out[..., : N + 1], None if h is None else h[..., : N + 1])

    fused, plain = both(step, x, u, weight, *([gain] if gained else []))
    names = ["x'", *(["h"] if gained else []), "x", "u", "w", "gain"]
    for name, a, b in zip(names, fused, plain):
        a, b = (a[..., :N], b[..., :N]) if name in ("u", "gain") else (a, b)
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=name)
    out = fused[0]
    inner = (out[..., :N] ** 2).sum(-1) - out[..., N] ** 2
    torch.testing.assert_close(inner, -torch.ones_like(inner))


def test_far_points_keep_their_norms():
    """Radius 12: the squared times are 1e10, and differences of squares have lost everything in
    float32."""
    u = made(64, WIDTH).float()
    u = u / u.norm(dim=-1, keepdim=True) * torch.linspace(6, 12, 64).sinh()[:, None]
    x = rows.lift(u, N)
    out, _ = rows.residual_norm(x, u, torch.ones(1), None, N, N, 1.0, 1e-8)
    # x + x is 2 x, normalised x: m is 4. The roundings of N + 6 operations on numbers of the size
    # of the squared time are in it twice, and what has no digits any more is cut at 1.
    lost = (N + 6) * torch.finfo(x.dtype).eps * x[:, N].square()
    m = 4 * (u[:, :N].norm(dim=-1) / out[:, :N].norm(dim=-1)).square()
    assert (
        m.isfinite().all()
        and (m >= 0.999 * (4 - lost).clamp(min=1)).all()
        and (m <= 1.001 * (4 + lost)).all()
    )


@pytest.mark.parametrize("n", [N, None])
def test_swiglu(n):
    z = torch.cat([made(6, WIDTH), made(6, WIDTH, seed=2)], -1)
    c = torch.tensor([0.7], dtype=torch.float64)
    live = [*range(N), *range(WIDTH, WIDTH + N)]
    fused, plain = both(
        lambda z, c, fused: rows.swiglu(z, n, c if n else 1.0 + 0 * c.item(), fused) + 0 * c.sum(),
        z,
        c,
    )
    torch.testing.assert_close(fused[0], plain[0])
    torch.testing.assert_close(fused[1][:, live], plain[1][:, live])
    torch.testing.assert_close(fused[2], plain[2])


def test_centroid_is_the_cores():
    weights = torch.rand(
        5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    ).softmax(-1)
    points = made(7, WIDTH, seed=4, timeless=False)[:, : N + 1]
    time_first = torch.cat([points[:, N:], points[:, :N]], -1)
    core = lorentz.centroid(time_first.expand(5, 7, -1), weights, 1.0)
    ours = rows.centroid((weights @ points)[None, :, None], N + 1, WIDTH)[0]
    torch.testing.assert_close(
        torch.cat([ours[:, N : N + 1], ours[:, :N]], -1), core, rtol=1e-6, atol=1e-6
    )
    origin = torch.zeros(1, 1, 1, N + 1, requires_grad=True)  # no direction, yet a gradient
    rows.centroid(origin + torch.eye(N + 1)[N], N + 1, WIDTH).sum().backward()
    assert origin.grad.isfinite().all()


@each("released", [True, False])
@each("k, shared", [(2, True), (1, True), (3, False)])
def test_combination(released, k, shared):
    from references.helm import Residual, inner, lift

    weights = torch.rand(6, k, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w_y, scale = (torch.tensor([v], dtype=torch.float64) for v in (1.2, 0.6))
    parts = [made(6, WIDTH, seed=i) for i in range(k + shared)]

    found = rows.combine(
        torch.stack(parts[shared:] + parts[:shared]),
        weights,
        *((w_y, scale) if shared else (None, None)),
        released,
    )
    manifold = type("M", (), {"c": torch.tensor(1.0, dtype=torch.float64)})()
    points = [lift(p[:, :N]) for p in parts]
    if released:
        y = lift(torch.zeros(6, N, dtype=torch.float64))
        combine = object.__new__(Residual)
        torch.nn.Module.__init__(combine)
        combine.manifold, combine.fixed = manifold, 2.0
        for i, point in enumerate(points[shared:]):
            y = combine(y, point, weight=weights[:, i : i + 1])
        if shared:
            combine.fixed = scale.exp()
            y = combine(points[0], y, weight=w_y)
    else:
        y = sum(w[:, None] * p for w, p in zip(weights.T, points[shared:]))
        y = y + points[0] if shared else y
        y = y / torch.sqrt(-inner(y, y))
    torch.testing.assert_close(found[:, :N], y[:, 1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("released", [True, False])
def test_combination_of_far_points_keeps_its_digits(released):
    """Radius 0 to 6 in float32 beside the same in float64: the squared times are 40,000."""
    lengths = torch.linspace(0, 6, 6, dtype=torch.float64).sinh()[:, None]
    parts = [made(6, WIDTH, seed=i) for i in range(3)]
    parts = [p / p.norm(dim=-1, keepdim=True) * lengths for p in parts]
    weights = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights[2] = 0.0

    def combined(dtype):
        given = [p.to(dtype).requires_grad_() for p in (*parts, weights)]
        one = torch.ones(1, dtype=dtype)
        out = rows.combine(torch.stack(given[1:3] + given[:1]), given[3], one, 0.7 * one, released)
        out.square().sum().sqrt().backward()
        return [out.detach(), *(p.grad for p in given)]

    for near, exact in zip(combined(torch.float32), combined(torch.float64)):
        assert near.isfinite().all()
        torch.testing.assert_close(
            near.double(), exact, rtol=2e-3, atol=2e-3 * exact.abs().max().item()
        )


def test_centroids_of_near_points_are_no_farther_than_these():
    """Radius 9 in float32: differences of the squared times, 16 million, have no digits left of
    1."""
    space = made(64, WIDTH)
    space = (
        space
        / space.norm(dim=-1, keepdim=True)
        * torch.sinh(torch.tensor(9.0, dtype=torch.float64))
    ).float()
    weights = torch.rand(64, 2, generator=torch.Generator().manual_seed(1))
    parts = [space * (1 + 1e-4 * i) for i in range(3)]
    ratio = rows.combine(torch.stack(parts[1:] + parts[:1]), weights, None, None, False).norm(
        dim=-1
    ) / space.norm(dim=-1)
    assert (ratio > 0.3).all() and (ratio < 3).all()
