"""Points, momenta and gradients that are sharded among two processes: steps, distributed
checkpoints and norms are those of one process."""

from __future__ import annotations

import pytest
import torch
from helpers.processes import run_in_two
from torch import nn

from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.nn import LorentzBatchNorm2d, LorentzConv2d, LorentzMLR
from hypvision.optim import unsharded_parameters


class Net(nn.Module):
    """Convolution, batch norm, classifier, on a hyperboloid of learned curvature."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.manifold = Lorentz(0.5, learnable=True)
        self.conv = LorentzConv2d(3, 4, 3, self.manifold)
        self.norm = LorentzBatchNorm2d(4, self.manifold)
        self.head = LorentzMLR(4, 3, self.manifold)

    def forward(self, images, labels):
        maps = self.norm(self.conv(images)).mean((2, 3))
        return nn.functional.cross_entropy(self.head(maps), labels)


class Halves(Net):
    """What two processes see: the mean of the losses of both halves, each normalised by itself."""

    def forward(self, images, labels):
        return (
            super().forward(images[:4], labels[:4]) + super().forward(images[4:], labels[4:])
        ) / 2


WORKER = """
import torch, torch.distributed as dist
from test_sharding import Halves, Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from hypvision.geometry import ManifoldParameter, named_manifold_parameters
from hypvision.optim import RiemannianAdam, param_groups, unsharded_parameters

dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
generator = torch.Generator().manual_seed(3)
images = torch.randn(3, 8, 3, 6, 6, generator=generator)
labels = torch.randint(3, (3, 8), generator=generator)


def train(model, images, labels):
    optimizer = RiemannianAdam(param_groups(model, lr=0.02, curvature_lr=0.01))
    for x, y in zip(images, labels):
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()


alone = Halves()
train(alone, images, labels)

model = Net()
ignored = unsharded_parameters(model)
assert ignored == {model.norm.beta, model.manifold.log_c}, ignored
fully_shard(model, mesh=mesh, ignored_params=ignored)
assert isinstance(model.conv.weight, DTensor) and isinstance(model.norm.gamma, DTensor)
assert type(model.norm.beta) is ManifoldParameter  # whole on every process
assert [name for name, _, _ in named_manifold_parameters(model)] == ["norm.beta"]
mine = slice(4 * rank, 4 * rank + 4)
train(model, images[:, mine], labels[:, mine])
for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
    p = p.full_tensor() if isinstance(p, DTensor) else p
    torch.testing.assert_close(
        p.detach(), q.detach(), rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}"
    )
    assert not torch.equal(q, dict(Net().named_parameters())[name]), name
model.manifold.check_point(model.norm.beta.detach(), "beta")
betas = [torch.empty(5) for _ in range(2)]
dist.all_gather(betas, model.norm.beta.detach())
assert torch.equal(*betas)

# without the helper the point is cut, and that is said
cut = Net()
fully_shard(cut, mesh=mesh, ignored_params={cut.manifold.log_c})
try:
    train(cut, images[:, mine], labels[:, mine])
except RuntimeError as error:
    assert "unsharded_parameters" in str(error), error
else:
    raise AssertionError("a point that was cut in pieces went through a step")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_batch_norms_train_in_two_processes_as_in_one(tmp_path):
    run_in_two(WORKER, tmp_path, __file__)


class Tables(nn.Module):
    """A weight and tables of points, of which processes have 3 and 2 rows, and 1 and none."""

    manifold_parameters = ("points", "lone")

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.manifold = Lorentz(0.5, learnable=True)
        self.linear = nn.Linear(3, 3, bias=False)
        self.points = ManifoldParameter(self.manifold.random(5, 3).detach(), self.manifold)
        self.lone = ManifoldParameter(self.manifold.random(1, 3).detach(), self.manifold)

    def forward(self, x):
        x = self.manifold.expmap0(self.linear(x))
        distances = self.manifold.dist(x[:, None], torch.cat([self.points, self.lone]))
        return (distances.square() * torch.arange(1, 7)).mean()


class Unlisted(Tables):
    """The same, as a module that does not name its points."""

    manifold_parameters = ()


TABLES = """
import math, os, warnings
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_sharding import Tables, Unlisted
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_optimizer_state_dict, get_state_dict, set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from hypvision.optim import (
    RiemannianAdam, RiemannianSGD, clip_grad_norm_, get_total_norm, param_groups,
    unsharded_parameters,
)

dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
x = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(3))
mine = x[:, 4 * rank : 4 * rank + 4]


def adam(groups):
    return RiemannianAdam(groups, lr=0.05, amsgrad=True)


def sgd(groups):
    return RiemannianSGD(groups, lr=0.05, momentum=0.9, geoopt_first_step=True, move="scale")


def sharded(kind):
    model = Tables()
    fully_shard(model, mesh=mesh, ignored_params=unsharded_parameters(model))
    return model, kind(param_groups(model))


def whole(tensor):
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def near(found, expected, *place):
    torch.testing.assert_close(
        found, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{place}: {text}"
    )


def train(model, optimizer, inputs):
    for one in inputs:
        optimizer.zero_grad()
        model(one).backward()
        optimizer.step()
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


def states_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


# momenta are gathered to those of one process
trained = {}
for kind in (sgd, adam):
    alone, (model, optimizer) = Tables(), sharded(kind)
    one = kind(param_groups(alone))
    expected = train(alone, one, x[:3])
    trained[kind] = expected
    found = train(model, optimizer, mine[:3])
    options = StateDictOptions(full_state_dict=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)["state"]
    for name, parameter in alone.named_parameters():
        near(found[name], expected[name], name)
        assert state[name].keys() == one.state[parameter].keys()
        for key, value in one.state[parameter].items():
            near(state[name][key], value, kind, name, key)

# points that no layer lists are found too, with and without groups, by other optimisers as well
for kind in (sgd, adam):
    expected = trained[kind]
    for grouped in (param_groups, Unlisted.parameters):
        other = Unlisted()
        fully_shard(other, mesh=mesh, ignored_params=unsharded_parameters(other))
        assert isinstance(other.points, DTensor) and not hasattr(other.points, "manifold")
        found = train(other, kind(grouped(other)), mine[:3])
        for name, value in expected.items():
            near(found[name], value, kind, grouped, name)
flat = torch.optim.SGD(other.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    flat.step()
assert "flat space" in " ".join(str(one.message) for one in caught)

# norms of gradients are those of one process, and scale all of them
for kind in (1.0, 2.0, math.inf):
    near(get_total_norm(model.parameters(), kind), get_total_norm(alone.parameters(), kind), kind)
near(clip_grad_norm_(model.parameters(), 0.01), clip_grad_norm_(alone.parameters(), 0.01), "clip")
for p, q in zip(model.parameters(), alone.parameters(), strict=True):
    assert q.grad.norm() < 0.011
    near(whole(p.grad), q.grad, "gradient")

# a distributed checkpoint resumes to the last bit, and so do the states that each process loads
# for itself, with the plain tensors that momenta of points once were
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint")
dcp.save(states_of(model, optimizer), checkpoint_id=folder)
start = {name: value.detach().clone() for name, value in model.state_dict().items()}
plain = {}
for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
    plain[number] = {key: value.clone() for key, value in optimizer.state[p].items()}
    if p is model.points or p is model.lone:
        for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            plain[number][key] = plain[number][key].to_local()
plain = {**optimizer.state_dict(), "state": plain}
end = train(model, optimizer, mine[3:])

for way in ("distributed", "plain"):
    model, optimizer = sharded(adam)
    if way == "distributed":
        states = states_of(model, optimizer)
        dcp.load(states, checkpoint_id=folder)
        set_state_dict(
            model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )
    else:
        model.load_state_dict(start)
        optimizer.load_state_dict(plain)
    for name, value in train(model, optimizer, mine[3:]).items():
        assert torch.equal(value, end[name]), (way, name)
    assert isinstance(optimizer.state[model.points]["exp_avg"], DTensor)

# whole states of another form are refused
model, optimizer = sharded(adam)
for entry in plain["state"].values():
    entry |= {key: torch.zeros(5, 1) for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")}
try:
    optimizer.load_state_dict(plain)
except ValueError as error:
    assert "set_optimizer_state_dict" in str(error), error
else:
    raise AssertionError("whole states were loaded for shards")

# what ZeroRedundancyOptimizer takes from the owner of the points is said
model = Tables()
optimizer = ZeroRedundancyOptimizer(model.parameters(), RiemannianAdam, lr=0.05)
model(x[0]).backward()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.step()
said = " ".join(str(one.message) for one in caught)
owned = {id(p) for group in optimizer.optim.param_groups for p in group["params"]}
lacks = id(model.manifold.log_c) not in owned and {id(model.points), id(model.lone)} & owned
assert ("learned curvature is not among" in said) == bool(lacks), said
assert "flat space" not in said, said
everyone = [None, None]
dist.all_gather_object(everyone, bool(lacks))
assert True in everyone
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_checkpoints_and_norms_of_shards_are_those_of_one_process(tmp_path):
    run_in_two(TABLES, tmp_path, __file__)


def test_a_process_group_is_needed():
    with pytest.raises(RuntimeError, match="init_process_group"):
        unsharded_parameters(Net())
