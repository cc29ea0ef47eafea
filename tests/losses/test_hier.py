"""HIER and LHIER against the published form written step by step."""

import math

import pytest
import torch
from helpers.cases import each
from references.hier import reference_hier_loss, reference_to_ball, reference_triplet_loss

from hypvision.geometry import Euclidean, Lorentz, PoincareBall
from hypvision.losses import HIERLoss, clip_to_ball, hier, lca_triplet_loss, mutual_neighbours
from hypvision.optim import RiemannianAdamW


def gumbel(*shape, dtype=torch.float64):
    return -torch.empty(*shape, dtype=dtype).exponential_().log()


@each("spread", [0.6, 4.0, 60.0])
def test_triplet_loss_and_gradient_equal_the_reference(spread):
    dist = (torch.rand(40, 33, dtype=torch.float64) * spread + 5).requires_grad_()
    triplets, noise = torch.randint(40, (900, 3)), gumbel(2, 900, 33)
    triplets[::7, 2] = triplets[::7, 0]  # the anchor itself as the unrelated node
    expected = reference_triplet_loss(dist, triplets, noise)
    (expected_grad,) = torch.autograd.grad(expected, dist)
    found = lca_triplet_loss(dist, triplets, gumbel=noise)
    (grad,) = torch.autograd.grad(3 * found, dist)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grad, 3 * expected_grad, atol=1e-14, rtol=1e-9)
    assert expected_grad.abs().max() > 1e-5


def test_other_temperatures_and_margins():
    dist, triplets, noise = torch.rand(9, 5).double(), torch.randint(9, (50, 3)), gumbel(2, 50, 5)
    for temperature, margin in ((0.02, 0.0), (2.0, 0.5)):
        torch.testing.assert_close(
            lca_triplet_loss(dist, triplets, temperature, margin, noise),
            reference_triplet_loss(dist, triplets, noise, temperature, margin),
        )


def test_only_differences_of_distances_count():
    """A constant changes neither choices nor gaps, also where exp(-distance / temperature) alone
    would be 0."""
    near = (torch.rand(20, 12) * 64).round() / 64  # float32 holds it exactly after the shift, too
    triplets, noise = torch.randint(20, (300, 3)), gumbel(2, 300, 12)
    found = []
    for shift in (0, 512):
        dist = (near + shift).requires_grad_()
        loss = lca_triplet_loss(dist, triplets, gumbel=noise)
        found.append((loss, *torch.autograd.grad(loss, dist)))
    torch.testing.assert_close(found[1], found[0])
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize("nats", [hier._NATS, 0.0], ids=["table", "as on a GPU"])
def test_the_score_of_the_papers(nats, monkeypatch):
    """Choices go by exp(-max d), without a temperature."""
    monkeypatch.setattr(hier, "_NATS", nats)
    dist = (3 * torch.rand(9, 5, dtype=torch.float64)).requires_grad_()
    triplets, noise = torch.randint(9, (50, 3)), gumbel(2, 50, 5)
    expected = reference_triplet_loss(dist, triplets, noise, exp=True)
    found = lca_triplet_loss(dist, triplets, temperature=7.0, gumbel=noise, score="exp")
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(3 * loss, dist)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, atol=1e-14, rtol=1e-9)
    assert abs(found - lca_triplet_loss(dist, triplets, gumbel=noise)) > 1e-3
    with pytest.raises(ValueError, match="score must be one of 'distance', 'exp', got 'log'"):
        lca_triplet_loss(dist, triplets, score="log")


def test_drawn_noise_gives_the_expected_loss():
    """The expectation of the loss over Gumbel noise is a sum over both choices with softmax
    probabilities."""
    d, margin = torch.rand(3, 6).double() * 0.5, 0.1
    pair = torch.softmax(-torch.maximum(d[0], d[1]) / 0.1, 0)
    triple = torch.softmax(-d.amax(0) / 0.1, 0)
    expected = 0.0
    for p in range(6):
        for q in range(6):
            gaps = (d[0, p] - d[0, q], d[1, p] - d[1, q], d[2, q] - d[2, p])
            expected += (
                (p != q) * pair[p] * triple[q] * sum((gap + margin).clamp(min=0) for gap in gaps)
            )
    triplets = torch.tensor([[0, 1, 2]]).expand(200_000, 3)
    torch.manual_seed(0)
    found = lca_triplet_loss(d, triplets)
    assert found.item() == pytest.approx(expected.item(), rel=0.01)


def test_windows_of_the_pool_repeat_with_the_seed_and_differ_without(monkeypatch):
    dist, triplets = torch.rand(50, 16), torch.randint(50, (3000, 3))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(lca_triplet_loss(dist, triplets))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    # drawing every number anew, as on a GPU, has the same expectation
    monkeypatch.setattr(
        hier,
        "_Noise",
        lambda like, *rest: lambda start, rows: gumbel(2, rows, 16, dtype=like.dtype).exp(),
    )
    assert lca_triplet_loss(dist, triplets).item() == pytest.approx(found[0].item(), rel=0.05)


def test_the_last_window_of_the_pool_is_whole(monkeypatch):
    """Where the largest of all places is drawn."""
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.full(size, high - 1))
    first, second = hier._Noise(torch.empty(1, 7), None, 256, hier._POOL)(0, 256)
    assert first.shape == second.shape == (256, 7) and first.min() > 0


@each("score", ["distance", "exp"])
@each("bad", [math.nan, math.inf])
def test_a_distance_that_is_not_finite_reaches_the_loss(bad, score):
    """Even that of a node without triplets."""
    dist = torch.rand(6, 5)
    dist[2, 3] = bad
    assert lca_triplet_loss(dist, torch.tensor([[0, 1, 4]]), score=score).isnan()


def test_triplets_that_do_not_count():
    """As without them; a GPU computes all, and weighs these by 0."""
    dist = torch.rand(9, 5, dtype=torch.float64, requires_grad=True)
    triplets, noise, valid = (
        torch.randint(9, (50, 3)),
        gumbel(2, 50, 5).double(),
        torch.rand(50) < 0.6,
    )
    expected = lca_triplet_loss(dist, triplets[valid], gumbel=noise[:, valid])
    total = hier._TripletLoss.apply(dist, dist, triplets, valid, 0.1, 0.1, noise)
    found = [lca_triplet_loss(dist, triplets, gumbel=noise, valid=valid), total / valid.sum()]
    [wanted] = torch.autograd.grad(expected, dist)
    for loss in found:
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, dist)[0], wanted)


def test_no_triplets_give_zero_and_bad_shapes_an_error():
    dist = torch.rand(4, 5, requires_grad=True)
    loss = lca_triplet_loss(dist, torch.empty(0, 3, dtype=torch.long))
    loss.backward()
    assert loss == 0 and not dist.grad.any()
    with pytest.raises(ValueError, match=r"\(N, P\)"):
        lca_triplet_loss(dist[0], torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="gumbel"):
        lca_triplet_loss(dist, torch.zeros(1, 3, dtype=torch.long), gumbel=torch.zeros(1, 1, 5))
    with pytest.raises(ValueError, match="temperature"):
        lca_triplet_loss(dist, torch.zeros(1, 3, dtype=torch.long), temperature=0)


def test_mutual_neighbours_by_hand():
    # on a line: 0 1 2 .... 9; the two nearest of each, itself included
    place = torch.tensor([0.0, 1.0, 1.5, 9.0])
    mutual = mutual_neighbours(-(place[:, None] - place[None]).abs(), 2)
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[1, 2] = expected[2, 1] = True  # 0 likes 1 and 3 likes 2, but not the other way round
    assert torch.equal(mutual, expected)


def counted(*arguments, **options):
    triplets, valid = hier.draw_triplets(*arguments, **options)
    return triplets[valid]


def test_triplets_follow_the_neighbourhood():
    # two groups of 6 and one node apart
    group = torch.tensor([0] * 6 + [1] * 6 + [2])
    similarity = (group[:, None] == group[None]).double() + torch.rand(13, 13) * 0.1
    similarity = similarity + similarity.T
    triplets = counted(similarity, k=6, draws=40)
    assert len(triplets) == 12 * 40 and 12 not in triplets[:, 0]
    i, j, k = group[triplets].T
    assert (i == j).all() and (triplets[:, 0] != triplets[:, 1]).all()
    assert ((i != k) | (triplets[:, 0] == triplets[:, 2])).all() and (
        triplets[:, 0] == triplets[:, 2]
    ).any()
    triplets = counted(similarity, k=6, draws=40, exclude_anchor=True)
    assert (triplets[:, 0] != triplets[:, 2]).all()
    assert counted(torch.eye(3), k=1).shape == (0, 3)
    # 1 and 2 have one mutual neighbour each, 0 and 3 none (as above)
    place = torch.tensor([0.0, 1.0, 1.5, 9.0])
    similarity = -(place[:, None] - place[None]).abs()
    assert len(counted(similarity, 2)) == 0
    assert counted(similarity, 2, draws=3, least=1)[:, :2].tolist() == [[1, 2]] * 3 + [[2, 1]] * 3
    # all are neighbours: what is left as unrelated is the anchor itself, or nothing
    assert counted(similarity, 4, draws=1)[:, [0, 2]].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert len(counted(similarity, 4, exclude_anchor=True)) == 0


def test_defaults_are_the_published_ones():
    similarity = torch.rand(60, 60)
    similarity = similarity + similarity.T
    drawn = []
    for options in ((), (20, 50, False)):
        torch.manual_seed(0)
        drawn.append(counted(similarity, *options))
    assert torch.equal(*drawn) and len(drawn[0]) > 0
    published = dict(temperature=0.1, margin=0.1, neighbours=20, draws=50, clip_radius=2.3, slope=2)
    for manifold in (PoincareBall(0.1), Lorentz(1.0)):
        x, labels, values = manifold.random(30, 4), torch.arange(30) // 3, []
        for options in ({}, dict(num_proxies=512, **published)):
            torch.manual_seed(0)
            values.append(HIERLoss(manifold, 4, **options)(x, labels))
        assert values[0] == values[1] > 0


def test_clip_to_ball_equals_the_reference_with_its_gradient():
    x = (torch.randn(20, 7).double() * torch.logspace(-2, 1, 20).double()[:, None]).requires_grad_()
    found, expected = clip_to_ball(x, PoincareBall(0.1)), reference_to_ball(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weight = torch.randn(20, 7).double()
    grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-3)


@each("c, radius", [(0.1, None), (1.0, None), (4.0, 2.3), (0.1, 2.3)])
def test_clip_to_ball_stays_as_far_from_the_boundary_as_hier(c, radius):
    """Without a clip, and where the curvature outweighs it, points end at sqrt(c) |y| = 1 - 1e-3,
    in float32 too."""
    x = torch.randn(40, 7).double() * torch.logspace(-2, 3, 40).double()[:, None]
    expected = reference_to_ball(x, c, 1e30 if radius is None else radius)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 2e-5)):
        found = clip_to_ball(x.to(dtype), PoincareBall(c), radius)
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=1e-4)
    most = float(c**0.5 * found.norm(dim=-1).max())
    assert most == pytest.approx(
        0.999 if radius is None or c > 2.7 else math.tanh(2.3 * 0.1**0.5), abs=1e-5
    )
    own = clip_to_ball(x, PoincareBall(c, eps=0.25), radius)  # a manifold that says how far
    assert float(c**0.5 * own.norm(dim=-1).max()) == pytest.approx(min(0.75, most), abs=1e-5)
    given = x.clone().requires_grad_()
    assert (
        torch.autograd.grad(clip_to_ball(given, PoincareBall(c), radius).sum(), given)[0]
        .isfinite()
        .all()
    )


def nodes(proxies=24, samples=18, dim=6, **options):
    features = (torch.randn(samples, dim).double() * 3).requires_grad_()
    loss = HIERLoss(PoincareBall(0.1), dim, proxies, neighbours=6, draws=8, **options).double()
    return features, loss


def test_proxies_begin_a_little_inside_of_the_clip():
    for manifold in (PoincareBall(0.1), Lorentz(1.0)):
        proxies = HIERLoss(manifold, 64, clip_radius=3.0).proxies.detach()
        radii = manifold.dist0(proxies) if isinstance(manifold, Lorentz) else proxies.norm(dim=-1)
        assert radii.mean().item() == pytest.approx(0.9 * 3, rel=0.02)


@pytest.mark.parametrize("score", ["distance", "exp"])
def test_hier_equals_the_reference_in_the_ball(score):
    features, loss = nodes(score=score)
    triplets = [torch.randint(n, (100, 3)) for n in (18, 24)]
    noise = [gumbel(2, 100, 24) for _ in range(2)]
    exp = score == "exp"
    expected = reference_hier_loss(features, loss.proxies, triplets, noise, exp=exp)
    found = loss(clip_to_ball(features, loss.manifold), torch.zeros(18).long(), triplets, noise)
    assert found.item() == pytest.approx(expected.item(), abs=2e-4) and found.dtype == torch.float64
    for tensor in (features, loss.proxies):
        a, b = (
            torch.autograd.grad(value, tensor, retain_graph=True)[0] for value in (found, expected)
        )
        torch.testing.assert_close(a, b, atol=2e-4 * b.abs().max().item(), rtol=2e-2)


def test_lorentz_and_poincare_give_the_same_loss():
    """The stereographic map is an isometry: without rescaling, LHIER of mapped points is HIER."""
    features, loss = nodes()
    ball = loss.manifold
    on_hyperboloid = HIERLoss(
        Lorentz(0.1), 6, 24, neighbours=6, draws=8, slope=math.atanh(0.99), limit=1e6
    ).double()
    on_hyperboloid.proxies.data = ball.to_lorentz(loss.points().detach())
    x = clip_to_ball(features, ball).detach()
    between = [
        module.manifold.cdist(module.points(), module.points()) for module in (loss, on_hyperboloid)
    ]
    torch.testing.assert_close(*between, atol=1e-6, rtol=1e-6)
    labels = torch.arange(18) // 3
    values = []
    for module, points in ((loss, x), (on_hyperboloid, ball.to_lorentz(x))):
        torch.manual_seed(3)
        values.append(module(points, labels).item())
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_labels_steer_the_neighbourhood():
    _, loss = nodes(samples=18)
    x = clip_to_ball(torch.randn(18, 6).double(), loss.manifold)
    labels = torch.arange(18) % 6  # classes of 3, unrelated to the places
    loss.neighbours = 3
    points = loss.points()
    (first, _), _ = loss._triplets(x, labels, loss.manifold.cdist(points, points))
    assert (labels[first[:, 0]] == labels[first[:, 1]]).all() and len(first) == 18 * 8


@pytest.mark.quick("hier")
@pytest.mark.parametrize("kind", ["hier", "lhier"])
def test_training_separates_two_groups_of_classes(kind):
    """With free embeddings as parameters the loss falls, and relatives get ancestors in common."""
    torch.manual_seed(0)
    manifold = PoincareBall(0.1) if kind == "hier" else Lorentz(1.0, learnable=True)
    loss = HIERLoss(manifold, 8, 16, neighbours=6, draws=20)
    labels = torch.arange(24) // 4
    free = torch.nn.Parameter(torch.randn(24, 8))
    optimizer = RiemannianAdamW([free, *loss.parameters()], lr=0.03)

    def embed():
        return (
            clip_to_ball(free, manifold)
            if kind == "hier"
            else manifold.rescale(manifold.expmap0(free))
        )

    values = []
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(embed(), labels)
        value.backward()
        assert all(torch.isfinite(p.grad).all() for p in (free, *loss.parameters()))
        optimizer.step()
        values.append(value.item())
    assert sum(values[-10:]) < 0.8 * sum(values[:10])
    if kind == "lhier":
        manifold.check_point(loss.proxies)
        assert manifold.c.item() != 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    loss = HIERLoss(Lorentz(1.0), 6, 12, neighbours=4, draws=6)
    x = loss.manifold.expmap0(torch.randn(10, 6)).to(dtype).requires_grad_()
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, torch.arange(10) // 2)
    value.backward()
    dist, triplets, noise = torch.rand(8, 5).to(dtype), torch.randint(8, (30, 3)), gumbel(2, 30, 5)
    assert lca_triplet_loss(dist, triplets, gumbel=noise) == lca_triplet_loss(
        dist.float(), triplets, gumbel=noise
    )
    assert value.dtype == torch.float32 and x.grad.dtype == dtype and torch.isfinite(x.grad).all()
    torch.manual_seed(0)
    assert value == loss(x.float(), torch.arange(10) // 2)


def test_no_tensor_of_samples_by_proxies_by_dim_is_allocated():
    """By construction: at 180 + 512 x 512 the peak stays below a tenth of the published form's
    single tensor."""
    from bench.common import peak_bytes

    loss = HIERLoss(PoincareBall(0.1), 512)
    x = clip_to_ball(torch.randn(180, 512), loss.manifold).detach().requires_grad_()
    labels = torch.arange(180) // 2
    peak = peak_bytes(lambda: loss(x, labels).backward())
    assert peak < 0.1 * 692 * 692 * 512 * 4, peak / 2**20


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="PoincareBall or a Lorentz"):
        HIERLoss(Euclidean(), 4)
    assert len(HIERLoss(Lorentz(), 4, num_proxies=2, neighbours=2, draws=1).proxies) == 2
    for wrong in (dict(num_proxies=1), dict(neighbours=1), dict(draws=0)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be an integer of at least"):
            HIERLoss(Lorentz(), 4, **wrong)
    with pytest.raises(ValueError, match="must be positive"):
        Lorentz(-1.0)
