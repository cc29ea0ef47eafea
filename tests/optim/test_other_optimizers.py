"""Points in the optimisers of other packages: one warning at the first step, and none for those
that keep them."""

import copy
import warnings

import geoopt
import pytest
import timm.optim
import torch
from helpers.cases import each
from torch import nn

from hypvision import optim
from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter, PoincareBall
from hypvision.optim.base import RiemannianOptimizer

MESSAGE = "steps through flat space, so that these parameters leave their manifolds"


class Model(nn.Module):
    """A weight and points, which transformers' Trainer can train, too."""

    def __init__(self, manifold=None):
        super().__init__()
        torch.manual_seed(0)
        self.manifold = manifold or Lorentz(0.7)
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.points = ManifoldParameter(self.manifold.random(5, 3).detach(), self.manifold)

    def forward(self, x=None, labels=None):
        loss = self.points.square().sum() + self.weight.square().sum()
        return {"loss": loss, "logits": self.weight}


def warnings_of(run):
    """What ``run`` warns of points that leave."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in found if MESSAGE in str(one.message)]


def steps(model, optimizer, count=3):
    def closure():
        optimizer.zero_grad()
        loss = model()["loss"]
        loss.backward()
        return loss

    for _ in range(count):
        optimizer.step(closure)


# all of PyTorch's own but those for sparse gradients and for matrices alone
TORCH = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam")
)
MAKERS = (
    {name: lambda p, name=name: getattr(torch.optim, name)(p, lr=0.01) for name in TORCH}
    | {
        f"AdamW {option}": lambda p, option=option: torch.optim.AdamW(p, lr=0.01, **{option: True})
        for option in ("foreach", "fused", "amsgrad")
    }
    # geoopt's take points of its own class alone for points
    | {"geoopt": lambda p: geoopt.optim.RiemannianAdam(p, lr=0.01)}
)


@each("name", MAKERS)
def test_one_warning_at_the_first_step(name):
    model = Model()
    optimizer = MAKERS[name](model.parameters())
    (text,) = warnings_of(lambda: steps(model, optimizer))
    assert text.startswith(
        f"{type(optimizer).__name__} of {'geoopt' if name == 'geoopt' else 'torch'} "
    )
    assert "(5, 4) on Lorentz(c=0.7)" in text
    assert "hypvision.optim" in text
    assert "(4, 3)" not in text
    with pytest.raises(ValueError, match="not on the hyperboloid"):
        model.manifold.check_point(model.points.detach(), tolerance=1e-6)


@each("name", ["adamw", "sgd", "lamb", "lion", "adafactor", "muon", "nadamw", "lookahead_adamw"])
def test_timms_optimizers_warn(name):
    model = Model()
    optimizer = timm.optim.create_optimizer_v2(model, name, lr=0.01)
    # Lookahead mixes points, too, whatever the optimiser in it does
    assert len(warnings_of(lambda: steps(model, optimizer))) == (
        2 if name.startswith("lookahead") else 1
    )


def test_names_are_told_where_they_are_known():
    model = Model()
    (text,) = warnings_of(lambda: steps(model, torch.optim.AdamW(model.named_parameters())))
    assert "points of shape (5, 4) on Lorentz(c=0.7)" in text


def test_many_parameters_are_counted():
    manifold = PoincareBall(0.7)
    points = [ManifoldParameter(torch.zeros(i + 1, 2), manifold) for i in range(8)]
    for parameter in points:
        parameter.grad = torch.zeros_like(parameter)
    (text,) = warnings_of(torch.optim.SGD(points).step)
    assert text.count("of shape") == 5
    assert "and 3 more" in text


@each("name", [n for n in optim.__all__ if n.startswith("Riemannian")])
def test_ours_and_geoopts_for_its_points_do_not_warn(name):
    model = Model()
    kind = getattr(optim, name)
    assert issubclass(kind, RiemannianOptimizer)
    assert not warnings_of(lambda: steps(model, kind(model.parameters(), lr=0.01)))
    model.manifold.check_point(model.points.detach())
    ball = geoopt.PoincareBall()
    theirs = geoopt.ManifoldParameter(torch.zeros(3), manifold=ball)
    theirs.grad = torch.ones(3)
    assert not warnings_of(geoopt.optim.RiemannianAdam([theirs]).step)


def test_a_curvature_that_another_optimizer_learns_is_told():
    model = Model(Lorentz(0.7, learnable=True))
    log_c = model.manifold.log_c
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.warns(UserWarning, match="learned curvature is not among") as found:
        optim.RiemannianAdam([model.weight, model.points]).step()
    (text,) = [str(one.message) for one in found]
    assert "(5, 4) on Lorentz(c=0.7, learnable)" in text
    assert "(4, 3)" not in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.RiemannianAdam([{"params": [model.points]}, {"params": [log_c]}]).step()
        log_c.requires_grad_(False)
        optim.RiemannianAdam([model.points]).step()


def test_no_warning_without_trained_points():
    frozen, flat = Model(), Model(Euclidean())
    frozen.points.requires_grad_(False)
    for model in (frozen, flat, nn.Linear(2, 2)):
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        assert not warnings_of(torch.optim.AdamW(parameters).step)


def test_groups_that_come_later_are_looked_at():
    model = Model()
    optimizer = torch.optim.SGD([model.weight], lr=0.01)
    assert not warnings_of(lambda: steps(model, optimizer))
    optimizer.add_param_group({"params": [model.points]})
    assert len(warnings_of(lambda: steps(model, optimizer))) == 1
    copied = copy.deepcopy(optimizer)  # nothing of this hangs at the optimiser
    assert copied.state_dict().keys() == optimizer.state_dict().keys()


def test_compiled_steps_have_no_break():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model()["loss"].backward()
    assert torch._dynamo.explain(optimizer.step)().graph_break_count == 0


@pytest.mark.parametrize(("kind", "count"), [("AdamW", 1), ("RiemannianAdamW", 0)])
def test_mmengines_wrapper_warns_but_not_with_ours(kind, count):
    from mmengine.optim import build_optim_wrapper

    import hypvision.engine  # noqa: F401

    model = Model()
    wrapper = build_optim_wrapper(
        model, dict(type="OptimWrapper", optimizer=dict(type=kind, lr=0.01))
    )
    assert (
        len(warnings_of(lambda: [wrapper.update_params(model()["loss"]) for _ in range(3)]))
        == count
    )


@pytest.mark.parametrize("ours", [False, True])
def test_trainer_of_transformers_warns_but_not_with_ours(tmp_path, ours):
    from transformers import Trainer, TrainingArguments

    model = Model()
    options = dict(max_steps=3, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
    data = [{"x": torch.zeros(1), "labels": torch.zeros(1)}] * 8
    mine = (optim.RiemannianAdamW(model.parameters(), lr=0.01), None) if ours else (None, None)
    trainer = Trainer(
        model, TrainingArguments(str(tmp_path), **options), train_dataset=data, optimizers=mine
    )
    assert len(warnings_of(trainer.train)) == (not ours)
