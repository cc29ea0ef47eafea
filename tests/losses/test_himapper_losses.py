"""The losses of Hi-Mapper: chance level, what each logit pulls together, finite gradients, the KL
in closed form."""

import math

import pytest
import torch
from helpers.cases import each
from torch.distributions import Normal, kl_divergence

from hypvision.geometry import Euclidean, Lorentz
from hypvision.losses.himapper import LOGITS, gaussian_prior_kl, tree_contrastive_loss

SIZES = (32, 16, 8, 4)


def levels(std=1.0, dtype=torch.float64, manifold=None, batch=2):
    generator = torch.Generator().manual_seed(0)
    manifold = manifold or Lorentz(0.7)
    return manifold, [
        manifold.from_tangent0(torch.randn(batch, n, 6, generator=generator, dtype=dtype) * std)
        for n in SIZES
    ]


@each("logit", LOGITS)
def test_chance_level_where_all_coincide(logit):
    manifold = Lorentz(1.0)
    points = [manifold.expmap0(torch.full((3, n, 6), 0.4)).requires_grad_() for n in SIZES]
    loss = tree_contrastive_loss(points, manifold, logit)
    assert loss.item() == pytest.approx(sum(math.log(n) for n in SIZES[:3]), rel=1e-5)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in points)


@each("logit", LOGITS)
@each("geometry, temperature", [("lorentz", 1.0), ("euclidean", 0.3)])
def test_value_is_that_of_the_sum_written_out(logit, geometry, temperature):
    manifold, points = levels(0.5, manifold=Euclidean() if geometry == "euclidean" else None)

    def similarity(a, b):
        if geometry == "euclidean":
            return {"inner": a @ b, "distance": (a - b).norm(), "neg_distance": -(a - b).norm()}[
                logit
            ]
        inner = a[1:] @ b[1:] - a[0] * b[0]
        distance = torch.acosh((-0.7 * inner).clamp(min=1)) / math.sqrt(0.7)
        return {"inner": inner, "distance": distance, "neg_distance": -distance}[logit]

    expected = 0.0
    for children, parents in zip(points, points[1:]):
        count = children.shape[0] * children.shape[1]
        for h, p in zip(children, parents):
            for i in range(len(h)):
                own = (similarity(h[i], p[i // 2]) / temperature).exp()
                others = [
                    (similarity(h[i], h[j]) / temperature).exp() for j in range(len(h)) if j != i
                ]
                expected = expected - (own / (own + sum(others))).log() / count
    found = tree_contrastive_loss(
        points, manifold, logit, **({} if temperature == 1 else {"temperature": temperature})
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@each("logit, nearer", [("neg_distance", True), ("inner", True), ("distance", False)])
def test_minus_distance_brings_children_to_their_parents_and_distance_does_not(logit, nearer):
    manifold = Lorentz(1.0)
    generator = torch.Generator().manual_seed(1)
    free = [(torch.randn(4, n, 6, generator=generator) * 0.5).requires_grad_() for n in SIZES]
    optimizer = torch.optim.Adam(free, lr=1e-2)

    def parent_distance():
        points = [manifold.expmap0(v) for v in free]
        pairs = zip(points, points[1:])
        return sum(manifold.dist(h, p.repeat_interleave(2, 1)).mean() for h, p in pairs).item()

    before = parent_distance()
    for _ in range(30):
        optimizer.zero_grad()
        tree_contrastive_loss([manifold.expmap0(v) for v in free], manifold, logit).backward()
        optimizer.step()
    assert (parent_distance() < before) == nearer


def test_half_precision_is_computed_in_float32():
    manifold, points = levels(dtype=torch.float32)
    expected = tree_contrastive_loss([p.bfloat16().float() for p in points], manifold)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tree_contrastive_loss([p.bfloat16() for p in points], manifold)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=0)


def test_gradients_are_exact():
    manifold, points = levels(batch=1)
    points = [p[:, : 4 // 2**i, 1:].detach().requires_grad_() for i, p in enumerate(points[:3])]

    def loss(*spaces):
        return tree_contrastive_loss([manifold.from_space(x) for x in spaces], manifold)

    assert torch.autograd.gradcheck(loss, points)


def test_single_levels_and_mistakes():
    manifold, points = levels()
    assert tree_contrastive_loss(points[:1], manifold) == 0
    with pytest.raises(ValueError, match="logit must be one of"):
        tree_contrastive_loss(points, manifold, "cosine")
    with pytest.raises(ValueError, match="half of the nodes"):
        tree_contrastive_loss([points[0], points[2]], manifold)
    with pytest.raises(ValueError, match="temperature"):
        tree_contrastive_loss(points, manifold, temperature=0)


def test_kl_is_that_of_gaussians():
    mean, log_variance = (
        torch.randn(4, 7, dtype=torch.float64),
        torch.randn(4, 7, dtype=torch.float64),
    )
    zero, one = torch.zeros_like(mean), torch.ones_like(mean)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(zero, one)).mean()
    torch.testing.assert_close(gaussian_prior_kl(mean, log_variance), expected)
    assert gaussian_prior_kl(zero, zero) == 0
    assert gaussian_prior_kl(mean.half(), log_variance.half()).dtype == torch.float32
