"""Losses on chains: against the formulas, at the points where those fail, on trees, on chains of
any length."""

import math

import mpmath
import pytest
import torch
from helpers.cases import each
from references import radial as reference

from hypvision.geometry import Euclidean, lorentz
from hypvision.losses import (
    EntailmentConeLoss,
    MERUEntailmentLoss,
    RadialLoss,
    chain_triples,
    cone_half_aperture,
    radial_angle,
)

LOSSES = [RadialLoss(), EntailmentConeLoss(margin=0.1), MERUEntailmentLoss(margin=0.1)]


def units(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(
        torch.randn(*shape, dtype=dtype, generator=generator), dim=-1
    )


@each("dtype, tolerance", [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@each("weights", [(10.0, 1.0, 1.0), (3.0, 0.5, 2.0)])
def test_parts_and_gradients_are_the_published_ones(dtype, tolerance, weights):
    e, before = units(8, 6, 16).to(dtype).requires_grad_(), units(8, 6, 16, seed=1).to(dtype)
    root = units(16, seed=2).to(dtype).requires_grad_()
    prior, entail, hard = weights
    found = RadialLoss(entail, hard, prior)(
        e.flatten(0, 1), chain_triples(4, 6), root, before.flatten(0, 1)
    )
    ploss, eloss, mloss, total = reference.radial_loss(e, root, before, weights)
    for name, weight, expected in (
        ("prior", prior, ploss),
        ("entail", entail, eloss),
        ("hard", hard, mloss),
    ):
        torch.testing.assert_close(
            found[f"loss_{name}"], weight * expected, rtol=tolerance, atol=tolerance
        )
    gradients = [
        torch.autograd.grad(loss, (e, root), retain_graph=True)
        for loss in (sum(found.values()), total)
    ]
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=20 * tolerance, atol=20 * tolerance)


def test_equal_texts_count_as_often_as_they_occur():
    e, before, root = units(5, 8), units(5, 8, seed=1), units(8, seed=2)
    number = torch.tensor([0, 0, 1, 2, 3, 4, 4, 4])
    triples = chain_triples(2, 2)
    every = RadialLoss()(e[number], triples, root, before[number])
    once = RadialLoss()(e, number[triples], root, before, number.bincount())
    assert {k: pytest.approx(v.item(), abs=1e-12) for k, v in every.items()} == {
        k: v.item() for k, v in once.items()
    }


def test_small_and_large_angles_keep_their_digits():
    """Against 50 digits, from 1e-5 to pi - 1e-5, where arccos in float32 has no digit left."""
    root, e = torch.zeros(3), torch.tensor([1.0, 0.0, 0.0])
    for size in (1e-5, 1e-3, 0.1, 1.0, 3.0, math.pi - 1e-3):
        way = torch.tensor([math.cos(size), math.sin(size), 0.0], dtype=torch.float64).float()
        with mpmath.workdps(50):
            x, y = (mpmath.mpf(v.item()) for v in ((e + way) - e)[:2])
            expected = float(mpmath.atan2(y, x))
        assert radial_angle(e, e + way, root).item() == pytest.approx(expected, rel=3e-6, abs=2e-7)


def test_it_is_the_angle_of_the_geometry():
    e, other, root = units(9, 5), units(9, 5, seed=1), units(5, seed=2)
    expected = Euclidean().exterior_angle(e - root, other - root)
    torch.testing.assert_close(radial_angle(e, other, root), expected, rtol=1e-9, atol=1e-9)


DEGENERATE = {
    "general is the root": lambda r: (r, units(4, seed=5)),
    "both are one": lambda r: (units(4, seed=5), units(4, seed=5)),
    "on a line outwards": lambda r: (r + 0.5 * units(4, seed=6), r + 1.5 * units(4, seed=6)),
    "on a line back": lambda r: (r + 0.5 * units(4, seed=6), r + 0.1 * units(4, seed=6)),
    "equal but for round-off": lambda r: (units(4, seed=5), units(4, seed=5) + 5e-8),
    "nearly on a line": lambda r: (
        r + 0.5 * units(4, seed=6),
        r + units(4, seed=6) + 1e-7 * units(4, seed=7),
    ),
}


@each("dtype", [torch.float32, torch.float64])
@each("case", DEGENERATE)
def test_value_and_gradient_are_finite_everywhere(case, dtype):
    root = units(4, seed=9).to(dtype).requires_grad_()
    e, other = (
        x.detach().to(dtype).requires_grad_() for x in DEGENERATE[case](root.detach().double())
    )
    for value in (radial_angle(e, other, root), cone_half_aperture(e, root, 0.1)):
        assert 0 <= value.item() <= math.pi + 1e-6
        gradients = torch.autograd.grad(value, (e, root), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients)
    angle = radial_angle(e, other, root)
    (gradient,) = torch.autograd.grad(angle, other)
    if dtype is torch.float64 and case == "equal but for round-off":
        return  # at 1e-7 there is a direction in float64
    assert gradient.norm() < 10
    if case in ("general is the root", "both are one"):
        assert angle == 0 and not gradient.any()
    if "on a line" in case:
        assert angle.item() == pytest.approx(math.pi if case.endswith("back") else 0, abs=1e-3)


@pytest.mark.parametrize(("dtype", "shortest"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_the_shortest_way_with_an_angle(dtype, shortest):
    """A right angle, at the end of a ray or before a way that is just long enough, and just not."""
    root, ahead, aside = (
        torch.zeros(2, dtype=dtype),
        torch.tensor([1.0, 0], dtype=dtype),
        torch.tensor([0, 1.0], dtype=dtype),
    )
    for length, expected in ((1.2 * shortest, math.pi / 2), (0.8 * shortest, 0)):
        assert radial_angle(ahead, ahead + length * aside, root).item() == pytest.approx(
            expected, rel=1e-3
        )
        assert radial_angle(length * ahead, length * ahead + aside, root).item() == pytest.approx(
            expected, rel=1e-3
        )


def test_parts_without_weight_are_left_out():
    e, triples, root = units(8, 5), chain_triples(4, 1), units(5, seed=2)
    assert set(RadialLoss(hard=0)(e, triples, root, e)) == {"loss_entail", "loss_prior"}
    assert set(RadialLoss(prior=0)(e, triples, root, e)) == {"loss_entail", "loss_hard"}


def test_chains_of_any_length():
    assert chain_triples(4, 1).tolist() == [[0, 1, 4], [1, 2, 5], [2, 3, 6]]
    assert chain_triples(2, 3).tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert chain_triples(3, 2).tolist() == [[0, 2, 6], [1, 3, 7], [2, 4, 8], [3, 5, 9]]
    assert chain_triples(3, 1, "all").tolist() == [[0, 1, 3], [0, 2, 3], [1, 2, 4]]
    assert chain_triples(3, 2, [(0, 2)]).tolist() == [[0, 4, 6], [1, 5, 7]]
    with pytest.raises(ValueError, match="levels must be an integer of at least 2"):
        chain_triples(1, 3)
    with pytest.raises(ValueError, match=r"3 levels have no pair \(2, 1\)"):
        chain_triples(3, 1, [(0, 1), (2, 1)])
    with pytest.raises(ValueError, match="pairs.* must be one of 'next', 'all', got 'some'"):
        chain_triples(3, 1, "some")


@pytest.mark.quick("RadialLoss")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_they_order_a_tree(loss):
    """A root word with two children of two each: one call trains it, and afterwards parents are
    nearer to the root."""
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
    triples = torch.tensor(
        [(p, c, next(s for s in parents if parents[s] != p and s != p)) for c, p in parents.items()]
    )
    weights = units(7, 12, dtype=torch.float32).requires_grad_()
    root, before = units(12, seed=3).float(), weights.detach().clone()
    optimizer = torch.optim.Adam([weights], lr=0.01)
    first = None
    for _ in range(150):
        e = torch.nn.functional.normalize(weights, dim=-1)
        total = sum(loss(e, triples, root, before).values())
        first = total.item() if first is None else first
        optimizer.zero_grad()
        total.backward()
        assert weights.grad.isfinite().all()
        optimizer.step()
    assert total.item() < first
    with torch.no_grad():
        positive = radial_angle(e[triples[:, 0]], e[triples[:, 1]], root)
        negative = radial_angle(e[triples[:, 0]], e[triples[:, 2]], root)
    assert positive.mean() < negative.mean()


def test_cones_are_those_of_the_papers():
    e, root = units(3, 10, 6), units(6, seed=2)
    rows = torch.arange(30).view(3, 10).T
    flat = EntailmentConeLoss(epsilon=0.3, margin=0.2)(e.flatten(0, 1), rows, root)
    aperture = torch.arcsin((0.3 / (e[0] - root).norm(dim=-1)).clamp(max=1))
    outside = [(reference.angle(e[0], e[i], root) - aperture).clamp(min=0) for i in (1, 2)]
    assert flat["loss_entail"].item() == pytest.approx(outside[0].mean().item(), rel=1e-9)
    assert flat["loss_negative"].item() == pytest.approx(
        (0.2 - outside[1]).clamp(min=0).mean().item(), rel=1e-9
    )
    meru = MERUEntailmentLoss(c=0.5, min_radius=0.2)(e.flatten(0, 1), rows, root)
    x, y = (lorentz.expmap0(v - root, 0.5) for v in e[:2])
    assert set(meru) == {"loss_entail"}
    assert meru["loss_entail"].item() == pytest.approx(
        lorentz.entailment_loss(x, y, 0.5, 0.2).mean().item(), rel=1e-9
    )


@each("loss", LOSSES)
def test_half_precision_is_computed_in_single(loss):
    e, root = units(8, 16).to(torch.bfloat16), units(16, seed=2).to(torch.bfloat16)
    found = loss(e, chain_triples(4, 1), root, e)
    expected = loss(e.float(), chain_triples(4, 1), root.float(), e.float())
    assert all(value.dtype == torch.float32 for value in found.values())
    with torch.autocast("cpu", torch.bfloat16):
        again = loss(e.float(), chain_triples(4, 1), root.float(), e.float())
    for name, value in expected.items():
        assert found[name].item() == value.item() == again[name].item()
    half = radial_angle(e[:4], e[4:], root)
    assert torch.equal(half, radial_angle(e[:4].float(), e[4:].float(), root.float()))
    with pytest.raises(ValueError, match="at least one triple"):
        loss(e, chain_triples(4, 1)[:0], root)
