"""A network with Lorentz batch norms under fully sharded data parallelism, in two processes."""

from __future__ import annotations

import pytest
import torch
from helpers.processes import run_in_two
from torch import nn

from hypvision.geometry import Lorentz
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


def test_a_process_group_is_needed():
    with pytest.raises(RuntimeError, match="init_process_group"):
        unsharded_parameters(Net())
