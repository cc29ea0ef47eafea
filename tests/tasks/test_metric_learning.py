"""The metric learner, its parameter groups, the warm-up and the exchange of embeddings between
processes."""

from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from helpers.cases import each
from torch import nn

pytest.importorskip("mmengine")
from helpers.metric_learning import HIER, VIT, gradients
from mmengine.optim import build_optim_wrapper

from hypvision.geometry import Lorentz, ManifoldParameter, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.optim import RiemannianAdamW
from hypvision.tasks.metric_learning import BackboneWarmUpHook, EmbeddingNeck, MetricLearner

GEOMETRIES = ("poincare", "lorentz", "euclidean")


def learner(geometry="lorentz", hier=True, **options):
    hier = HIER if hier and geometry != "euclidean" else None
    return MetricLearner(
        VIT, dict(dim=8, geometry=geometry), num_classes=4, hier_loss=hier, **options
    )


def batch(size=8):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, 3, 32, 32, generator=generator)
    return dict(inputs=images, label=torch.arange(size) // 2, index=torch.arange(size))


@each("geometry", GEOMETRIES)
def test_three_modes(geometry):
    model = learner(geometry).eval()
    points = model(**batch())
    assert points.shape == (8, 9 if geometry == "lorentz" else 8)
    losses = model(**batch(), mode="loss")
    assert (
        set(losses)
        == {
            "poincare": {"loss_metric", "loss_hier"},
            "lorentz": {"loss_metric", "loss_hier", "curvature"},
            "euclidean": {"loss_metric"},
        }[geometry]
    )
    predictions = model(**batch(), mode="predict")
    assert [p["index"] for p in predictions] == list(range(8)) and predictions[3]["label"] == 1
    if geometry == "euclidean":
        torch.testing.assert_close(
            torch.stack([p["embedding"] for p in predictions]).norm(dim=1), torch.ones(8)
        )
    else:  # points of unit curvature whose distances are those of the model, up to the unit
        found = torch.stack([p["embedding"] for p in predictions])
        manifold = model.neck.manifold
        expected = manifold.cdist(points, points) * manifold._value() ** 0.5
        torch.testing.assert_close(Lorentz(1.0).cdist(found, found), expected, atol=2e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="mode"):
        model(**batch(), mode="guess")


def test_lorentz_neck_after_its_definition():
    neck = EmbeddingNeck(6, 4, "lorentz", c=0.5)
    x = torch.randn(5, 6) * 7
    s = nn.functional.layer_norm(x, (6,)) @ neck.linear.weight.T + neck.linear.bias
    torch.testing.assert_close(neck.linear.weight @ neck.linear.weight.T, torch.eye(4))
    manifold = Lorentz(0.5)
    torch.testing.assert_close(neck(x), manifold.rescale(manifold.from_space(s)))
    manifold.check_point(neck(x))


def test_the_limit_follows_the_curvature_without_gradient():
    neck = EmbeddingNeck(6, 4, "lorentz", c=0.5)
    far = nn.functional.pad(torch.full((1, 4), 1e4), (1, 0))
    from hypvision.losses import rescale_radii

    radius = neck.manifold.dist0(rescale_radii(far, neck.manifold))
    limit = neck.manifold.max_distance()
    assert 0.9 * limit < radius < limit
    (grad,) = torch.autograd.grad(limit, neck.manifold.log_c)
    (found,) = torch.autograd.grad(radius.sum(), neck.manifold.log_c)
    # of the two ways that c has into the radius only that through the distance before is left
    assert found.abs() < 0.3 * grad.abs()


def test_radii_of_both_necks_are_those_of_the_papers():
    x = torch.randn(50, 384)
    poincare, lorentz = (EmbeddingNeck(384, 128, geometry) for geometry in ("poincare", "lorentz"))
    assert torch.allclose(poincare.manifold.dist0(poincare(x)), torch.tensor(4.6), atol=1e-3)
    assert 3.5 < lorentz.manifold.dist0(lorentz(x)).mean() < 5.0


def test_frozen_parts_stay():
    model = MetricLearner(
        dict(model_name="resnet10t"), dict(dim=8), 4, hier_loss=HIER, freeze_bn=True,
        frozen=("conv1.*",)
    )  # fmt: skip
    model.train()
    norms = [m for m in model.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms) and model.training
    names = [n for n, p in model.backbone.named_parameters() if not p.requires_grad]
    assert names and all(n.startswith("conv1.") for n in names)
    before = [m.running_mean.clone() for m in norms]
    model(**batch(), mode="loss")
    assert all(torch.equal(m.running_mean, b) for m, b in zip(norms, before))


def test_distilled_models_train_with_the_class_token():
    deit = dict(model_name="deit_tiny_distilled_patch16_224", img_size=32, depth=1)
    model = MetricLearner(deit, dict(dim=8), 4)
    tokens = model.backbone.forward_features(batch()["inputs"])
    torch.testing.assert_close(model.features(batch()["inputs"]), tokens[:, 0])
    torch.testing.assert_close(model.eval().features(batch()["inputs"]), tokens[:, :2].mean(1))


def wrapper(model, kind="RiemannianAdamW", **paramwise):
    optimizer = dict(type=kind, lr=1e-3, weight_decay=0.01)
    options = dict(
        type="OptimWrapper", constructor="MetricLearningParamGroups", paramwise_cfg=paramwise
    )
    return build_optim_wrapper(model, dict(optimizer=optimizer, **options))


def test_parameter_groups():
    model = learner(frozen=("patch_embed.*",))
    groups = {
        g["name"]: g
        for g in wrapper(model, neck_lr_scale=100, curvature_lr=0.5).optimizer.param_groups
    }
    rates = {name: group["lr"] for name, group in groups.items()}
    assert rates == pytest.approx(
        dict(body=1e-3, neck=0.1, hier_proxies=0.05, class_proxies=10, curvature=0.5)
    )
    assert [g["weight_decay"] for g in groups.values()] == [0.01] * 4 + [0.0]
    trained = [p for g in groups.values() for p in g["params"]]
    assert (
        len({id(p) for p in trained})
        == len(trained)
        == sum(p.requires_grad for p in model.parameters())
    )
    assert groups["hier_proxies"]["params"] == [model.hier_loss.proxies]
    assert groups["curvature"]["params"] == [model.neck.manifold.log_c]
    with pytest.raises(HypvisionError, match="'body_lr'"):
        wrapper(model, body_lr=1)
    with pytest.raises(HypvisionError, match="would leave.*RiemannianAdamW"):
        wrapper(model, "AdamW")
    wrapper(learner("poincare"), "AdamW")


@pytest.mark.quick("lorentz")
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_steps_lower_the_loss(geometry):
    torch.manual_seed(0)
    model = learner(geometry)
    optim = wrapper(model, class_lr_scale=10.0)
    losses = [model.train_step(batch(), optim)["loss"].item() for _ in range(30)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    if geometry == "lorentz":
        model.neck.manifold.check_point(model.hier_loss.proxies)
        assert model.neck.manifold._value() != 1.0


@each("dtype", [torch.float16, torch.bfloat16])
@each("geometry", ["poincare", "lorentz"])
def test_autocast_keeps_the_manifold_in_float32(geometry, dtype):
    model = learner(geometry)
    with torch.autocast("cpu", dtype=dtype):
        points = model(**batch())
        losses = model(**batch(), mode="loss")
    assert points.dtype == torch.float32
    model.neck.manifold.check_point(points)
    (losses["loss_metric"] + losses["loss_hier"]).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_warm_up_stops_the_body_alone_and_gives_the_rate_back():
    model = learner()
    optim = wrapper(model)
    hook, runner = BackboneWarmUpHook(epochs=1), SimpleNamespace(epoch=0, optim_wrapper=optim)
    body, neck = model.backbone.blocks[0].mlp.fc1.weight, model.neck.linear.weight
    for epoch, moves in ((0, False), (1, True)):
        runner.epoch = epoch
        before, neck_before = body.clone(), neck.clone()
        hook.before_train_iter(runner, 0)
        model.train_step(batch(), optim)
        hook.after_train_iter(runner, 0)
        assert torch.equal(body, before) != moves and not torch.equal(neck, neck_before)
        assert optim.optimizer.param_groups[0]["lr"] == 1e-3


def test_warm_up_by_epochs_needs_epochs():
    with pytest.raises(HypvisionError, match="this training counts iterations"):
        BackboneWarmUpHook().before_train(SimpleNamespace(train_loop=None))


def test_one_group_may_mix_manifolds():
    """Points of two manifolds and a plain weight in one group move as they do in groups of their
    own."""
    manifolds = (Lorentz(1.0), PoincareBall(0.5))
    start = [manifold.random(3, 4) for manifold in manifolds] + [torch.randn(3, 4)]

    def step(together):
        torch.manual_seed(1)
        made = [ManifoldParameter(s.clone(), manifold=m) for s, m in zip(start, manifolds)]
        made.append(nn.Parameter(start[2].clone()))
        groups = [dict(params=made)] if together else [dict(params=[p]) for p in made]
        optimizer = RiemannianAdamW(groups, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * torch.arange(1, 4)[:, None]).sum() for p in made).backward()
            optimizer.step()
        return made

    for one, other in zip(step(True), step(False)):
        assert torch.equal(one, other)


def test_mistakes_are_explained(monkeypatch):
    with pytest.raises(HypvisionError, match="'poincare', 'lorentz', 'euclidean', got 'flat'"):
        learner("flat")
    with pytest.raises(HypvisionError, match="model.neck.*must be positive.*-1"):
        EmbeddingNeck(4, 4, "lorentz", c=-1)
    with pytest.raises(
        HypvisionError, match="model.hier_loss.*num_proxies must be an integer of at least 2"
    ):
        MetricLearner(VIT, dict(dim=8), 4, hier_loss=dict(num_proxies=1))
    with pytest.raises(HypvisionError, match="PoincareBall or a Lorentz"):
        MetricLearner(VIT, dict(dim=8, geometry="euclidean"), 4, hier_loss=HIER)
    with pytest.raises(HypvisionError, match=r"'stem.\*' matches no parameter"):
        learner(frozen=("stem.*",))
    with pytest.raises(HypvisionError, match="no model 'test_vot'"):
        MetricLearner(dict(model_name="test_vot"), dict(dim=8), 4)
    with pytest.raises(HypvisionError, match="4 class proxies.*model.num_classes"):
        learner()(batch()["inputs"], torch.arange(8), mode="loss")

    model = learner()

    def broken(*_):
        raise ValueError("something else is wrong.")

    monkeypatch.setattr(model.metric_loss, "forward", broken)
    with pytest.raises(
        ValueError, match="^something else is wrong.$"
    ):  # the number of classes would not help
        model(batch()["inputs"], torch.arange(8) % 4, mode="loss")

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("hypvision.tasks.classification.create_model", offline)
    with pytest.raises(HypvisionError, match="'test_vit' cannot be fetched.*pretrained=False"):
        MetricLearner(dict(VIT, pretrained=True), dict(dim=8), 4)


# Processes


@pytest.mark.slow
@pytest.mark.parametrize("geometry", ["poincare", "lorentz"])
def test_two_processes_have_the_gradient_of_one(geometry, tmp_path):
    gradients(0, 1, tmp_path, geometry)
    one = torch.load(tmp_path / "result.pt")
    mp.spawn(gradients, (2, tmp_path, geometry), nprocs=2)
    two = torch.load(tmp_path / "result.pt")
    assert torch.equal(one["labels"], two["labels"])
    torch.testing.assert_close(one["loss"], two["loss"])
    for a, b in zip(one["grads"], two["grads"]):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
        assert a.abs().max() > 1e-6


def test_plain_gradients_of_a_neck_in_the_ball():
    """Hyp-ViT's are not scaled by the metric, HIER's are; the points are the same."""
    torch.manual_seed(0)
    scaled = EmbeddingNeck(6, 4)
    plain = EmbeddingNeck(6, 4, riemannian=False)
    plain.load_state_dict(scaled.state_dict())
    x = torch.randn(1, 6)
    for neck in (scaled, plain):
        neck(x).sum().backward()
    torch.testing.assert_close(scaled(x), plain(x))
    factor = (1 - 0.1 * plain(x).square().sum()) ** 2 / 4
    found = scaled.linear.weight.grad / plain.linear.weight.grad
    torch.testing.assert_close(found, factor.expand_as(found), rtol=1e-4, atol=1e-6)
