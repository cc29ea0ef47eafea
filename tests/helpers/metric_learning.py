"""A metric learner over several processes; in a module of its own because each process imports it
by name."""

import torch
import torch.distributed as dist
from torch import nn

from hypvision.losses.contrastive import gathered
from hypvision.tasks.metric_learning import EmbeddingNeck, MetricLearner

VIT = dict(model_name="test_vit", img_size=32)
HIER = dict(num_proxies=16, neighbours=4, draws=4)


def gradients(rank, world, folder, geometry):
    """Gradients of a small network whose batch is spread over processes, averaged as DDP does;
    triplets are given."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
        )
    torch.manual_seed(0)
    net = nn.Linear(5, 7)
    model = MetricLearner(VIT, dict(dim=6, geometry=geometry), 4, hier_loss=HIER)
    neck = EmbeddingNeck(7, 6, geometry)
    neck.manifold = neck.linear.manifold = model.neck.manifold
    x, labels = torch.randn(8, 5), torch.arange(8) // 2
    triplets = (torch.randint(8, (40, 3)), torch.randint(16, (40, 3)))
    noise = tuple(torch.randn(2, 40, 16) for _ in range(2))
    share = slice(rank * 8 // world, (rank + 1) * 8 // world)
    points, every = gathered(neck(net(x[share]))), gathered(labels[share])
    loss = model.metric_loss(points, every) + model.hier_loss(points, every, triplets, noise)
    loss.backward()
    parameters = [*net.parameters(), model.hier_loss.proxies, model.metric_loss.loss.proxies]
    grads = []
    for parameter in parameters:
        grad = parameter.grad.clone()
        if world > 1:
            dist.all_reduce(grad)
        grads.append(grad / world)
    if rank == 0:
        torch.save(dict(loss=loss.detach(), grads=grads, labels=every), f"{folder}/result.pt")
    if world > 1:
        dist.destroy_process_group()
