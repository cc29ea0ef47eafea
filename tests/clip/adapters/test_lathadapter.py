"""LatHAdapter against the formulas written down literally, its invariants, and batches that have
little in them."""

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from helpers.cases import each
from references import fewshot as reference

from hypvision.clip import adapters
from hypvision.clip.adapters.lathadapter import (
    LatentHierarchy,
    LatHAdapterConfig,
    attributes_for,
    refine,
)
from hypvision.io.errors import HypvisionError
from hypvision.losses import lca_triplet_loss

LABELS = torch.tensor([0, 2, 0, 1, 2, 4])


def features(images=6, classes=5, dim=32, seed=0, common=0.0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(images + classes, dim, generator=generator) + common
    return F.normalize(rows[:images], dim=-1), F.normalize(rows[images:], dim=-1)


def module(dim=32, seed=1, **options):
    torch.manual_seed(seed)
    return LatentHierarchy(dim, LatHAdapterConfig(**{"attributes": 7, **options}))


def drawn(model, features, labels):
    """Triplets among these features."""
    points = model.lift(features)
    rows, valid = model.draw(model.ball.cdist(points, points), labels)
    return rows[valid]


def recorded(model, image, labels=LABELS):
    """Triplets as it draws them, and Gumbel noise for them."""
    torch.manual_seed(3)
    triplets = drawn(model, image, labels), drawn(model, model.nodes(), None)
    noise = [
        -torch.empty(2, len(rows), size).exponential_().log()
        for rows, size in zip(triplets, (7, 5))
    ]
    return triplets, tuple(noise)


SINGLE, DOUBLE = torch.float32, torch.float64


@each(
    "dtype, length, options",
    [
        (SINGLE, 1, dict()),
        (DOUBLE, 1, dict(lca_score="exp", tau=0.3)),
        (DOUBLE, 1, dict(riemannian=True)),
        (DOUBLE, 10, dict(feature_norm="none")),
        (DOUBLE, 10, dict(feature_norm="none", clip_radius=0.7)),
        (DOUBLE, 10, dict(feature_norm="none", clip_radius=5.0, riemannian=True, lca_score="exp")),
    ],
)
def test_it_is_the_composite_of_the_formulas(dtype, length, options):
    """Lengths of 10 are those of CLIP's features, which the clip cuts; attributes have about 1."""
    image, text = ((length * x).to(dtype).requires_grad_() for x in features())
    model = module(**options).to(dtype)
    triplets, noise = recorded(model, image.detach())
    assert all(len(rows) for rows in triplets)
    out = model(image, text, 20.0, LABELS, triplets=triplets, gumbel=noise)
    given = image, text, model.attributes
    losses, logits = reference.lath(*given, 20.0, LABELS, triplets, noise, **options)
    within = 1e-5 if dtype == SINGLE else 1e-10
    assert (out.logits - logits).abs().max() < 2 * within
    found = dict(
        loss_ecls=F.cross_entropy(out.cosine, LABELS),
        loss_hcls=F.cross_entropy(-out.distance, LABELS),
        **out.losses,
    )
    assert found.keys() == losses.keys()
    for name, expected in losses.items():
        assert abs(found[name] - expected) < within, name
        got, wanted = (
            torch.autograd.grad(x, given, retain_graph=True, materialize_grads=True)
            for x in (found[name], expected)
        )
        for a, b in zip(got, wanted):
            assert (a - b).abs().max() < 10 * within, name
        assert max(x.abs().max() for x in wanted) > 1e-4, name


def test_features_of_any_length_are_those_of_unit_length():
    """As the towers give them: raw lengths of 10 would all lie at the rim of the ball."""
    image, text = features()
    lengths = torch.tensor([3.0, 10.0, 11.0, 9.0, 1.0, 0.2])[:, None]
    model = module()
    triplets, noise = recorded(model, image)
    for training in (True, False):
        model.train(training)
        given = dict(triplets=triplets, gumbel=noise) if training else {}
        unit, raw = (
            model(*pair, 20.0, LABELS, **given)
            for pair in ((image, text), (lengths * image, 10 * text))
        )
        assert (unit.logits - raw.logits).abs().max() < 1e-4
        assert (unit.distance - raw.distance).abs().max() < 1e-5
        assert all(abs(unit.losses[name] - raw.losses[name]) < 1e-5 for name in unit.losses)


@each("degree", ["abs", "relu", "clamp"])
@each("beta", [0.0, 0.1, 0.5])
def test_refiner(degree, beta):
    _, text = features(dim=8)
    attributes = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    found = refine(text, attributes, beta, degree)
    expected = reference.refine(text, attributes, beta, degree)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    many = refine(torch.stack([text, text.flip(0)]), attributes, beta, degree)
    assert (many[0] - found).abs().max() < 1e-4 * found.abs().max() and many.shape == (2, 5, 8)
    if beta == 0:
        assert torch.equal(found, text)


def test_degrees_agree_where_all_cosines_are_positive_and_stay_sane_elsewhere():
    _, text = features(common=1.0)
    attributes = torch.rand(4, 32) + 0.1
    found = [refine(text, attributes, 0.1, degree) for degree in ("abs", "relu", "clamp")]
    assert all((x - found[0]).abs().max() < 1e-6 for x in found)
    # An attribute opposite to all classes has a negative degree, without a root; "abs" moves texts
    # by beta at most.
    opposite = -text.mean(0, keepdim=True).expand(3, -1)
    assert (reference.unit(torch.cat([text, opposite])) @ reference.unit(opposite)[0]).sum() < 0
    moved = refine(text, opposite, 0.1, "abs") - text
    nodes = torch.cat([text, opposite])
    assert moved.norm() <= 0.1 * nodes.norm() and moved.isfinite().all()


def test_order_of_attributes_does_not_matter_and_beta_zero_leaves_the_host():
    image, text = features()
    model, other = module(), module()
    with torch.no_grad():
        other.attributes.copy_(model.attributes.flip(0))
        assert (
            model(image, text, 20.0).logits - other(image, text, 20.0).logits
        ).abs().max() < 1e-5
        plain = module(beta=0.0)(image, text, 20.0)
        assert (plain.logits + plain.distance - 20 * image @ text.T).abs().max() < 1e-5
        alone = module(hierarchy=False).train()(image, text, 20.0, LABELS)
        assert not alone.losses and torch.equal(alone.logits, alone.cosine)
        # Unit features at c = 0.1: distance 2 from the origin, 2.5 from each other at cosine 0.25
        # or so.
        ball = plain.distance
        assert ball.min() > 1.5 and ball.max() < 3.9


def test_each_image_with_its_own_classes():
    image, text = features()
    model = module()
    own = text.expand(6, -1, -1)
    triplets, noise = recorded(model, image)
    one, many = (
        model(image, t, 20.0, LABELS, triplets=triplets, gumbel=noise) for t in (text, own)
    )
    assert (one.logits - many.logits).abs().max() < 1e-5
    assert all(abs(one.losses[name] - many.losses[name]) < 1e-5 for name in one.losses)


@each("images, classes, labels", [(1, 5, [0]), (6, 1, [0] * 6), (1, 1, [0]), (2, 3, [0, 1])])
@each("attributes", [1, 2, 7])
def test_batches_with_little_in_them(images, classes, labels, attributes):
    image, text = features(images, classes)
    image, text = image.requires_grad_(), text.requires_grad_()
    model = module(attributes=attributes)
    out = model(image, text, 20.0, torch.tensor(labels))
    loss = F.cross_entropy(out.cosine, torch.tensor(labels)) + sum(out.losses.values())
    loss.backward()
    assert loss.isfinite() and all(x.grad.isfinite().all() for x in (image, text, model.attributes))
    if images == 1:
        assert out.losses["loss_va"] == 0  # no triplet


def test_hostile_features_stay_finite():
    for scale, norm in ((1e-20, "l2"), (0.0, "l2"), (0.0, "none"), (1e4, "none")):
        image, text = features()
        image, text = (scale * image).requires_grad_(), text.clone().requires_grad_()
        model = module(feature_norm=norm)
        out = model(image, text, 100.0, LABELS)
        (F.cross_entropy(out.logits, LABELS) + sum(out.losses.values())).backward()
        assert all(x.grad.isfinite().all() for x in (image, text, model.attributes))
    with torch.autocast("cpu", torch.bfloat16):  # computed outside it
        image, text = features()
        assert torch.equal(
            module()(image, text, 9.0).logits, module()(image.float(), text, 9.0).logits
        )


def test_what_triplets_are_drawn():
    image, _ = features()
    model = module()
    rows = drawn(model, image, LABELS)
    assert (rows[:, 0] != rows[:, 1]).all() and (
        rows[:, 0] != rows[:, 2]
    ).all()  # an anchor is no negative of itself
    same = LABELS[:, None] == LABELS
    partner = same[rows[:, 0], rows[:, 1]]
    assert (partner | (same.sum(1) == 1)[rows[:, 0]] | ~partner).all()
    for anchor in (0, 2):  # the two images of class 0 are each other's nearest
        assert partner[rows[:, 0] == anchor].any()
    official = drawn(module(exclude_anchor=False, least=2), image, LABELS)
    assert len(official) == 0 or (official[:, 0] == official[:, 2]).any()
    assert lca_triplet_loss(torch.rand(6, 7), rows).isfinite()


def test_number_and_start_of_attributes():
    assert [attributes_for(n) for n in (10, 37, 47, 100, 101, 102, 196, 397, 1000)] == [
        4, 8, 8, 12, 12, 12, 16, 24, 20]  # fmt: skip
    model = clip_models.openai_clip()
    adapters.inject(model, "lathadapter", classes=397)
    own = adapters.adapter_of(model).module
    assert own.attributes.shape == (24, 64) and 0.8 < own.attributes.norm(dim=-1).mean() < 1.2
    _, text = features(common=1.0)
    start = module(start="text")
    start.begin(text)
    assert F.cosine_similarity(start.nodes(), text.mean(0), dim=-1).min() > 0.98
    raw = module(start="text", feature_norm="none")
    raw.begin(10 * text)
    assert torch.allclose(raw.nodes(), 10 * text.mean(0), atol=0.15)
    before = own.attributes.clone()
    own.begin(text)
    assert torch.equal(own.attributes, before)  # random ones stay


def test_least_values_are_accepted():
    for name, least in dict(
        attributes=0, classes=1, dim=0, beta=0, sigma=0, neighbours=2, draws=1, least=1
    ).items():
        assert getattr(LatHAdapterConfig(**{name: least}), name) == least
        with pytest.raises(
            HypvisionError, match=f"{name} must be .* of at least {least}, got {least - 1}"
        ):
            LatHAdapterConfig(**{name: least - 1})
    assert LatHAdapterConfig(attributes="auto", classes=47).count == attributes_for(47)


def test_mistakes_are_explained():
    for match, options in (
        ("degree must be one of 'abs', 'relu', 'clamp', got 'sum'", dict(degree="sum")),
        ("lca_score must be one of 'distance', 'exp', got 'log'", dict(lca_score="log")),
        ("feature_norm must be one of 'l2', 'none', got None", dict(feature_norm=None)),
        ("c must be a finite number above 0, got 0", dict(c=0)),
        ("clip_radius must be a finite number above 0, got 0", dict(clip_radius=0)),
        ("'average' must be true or false, got 'no'", dict(average="no")),
        ("has no option betas. Did you mean beta", dict(betas=1)),
        ("attributes must be an integer of at least 0, got 'many'", dict(attributes="many")),
        ("'draws' must be a whole number, got 1.5", dict(draws=1.5)),
        ("'beta' must be a finite number, got inf", dict(beta=float("inf"))),
    ):
        with pytest.raises(HypvisionError, match=match):
            adapters.inject(clip_models.openai_clip(), "lathadapter", **options)
