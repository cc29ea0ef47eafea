"""The toy model's training step as the paper's scripts do it, written down literally: dense
batches, autograd, a loop over parameters. One model at a time."""

import math

import torch


def draw(p, batch, generator=None):
    """A dense batch from two uniform matrices, in the order of the scripts."""
    first = torch.rand(batch, len(p), generator=generator)
    second = torch.rand(batch, len(p), generator=generator)
    return (first < p).to(first) * second * 2


class Autoencoder(torch.nn.Module):
    """relu(x W W^T + b)."""

    def __init__(self, weight, bias):
        super().__init__()
        self.W, self.b = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(bias.clone())

    def forward(self, x):
        return torch.relu(x @ self.W @ self.W.T + self.b)


class Optimizer:
    """AdamW of two groups, W with ``decay`` and b without; a negative decay draws rows to unit
    norm."""

    def __init__(self, model, decay):
        self.groups = [(model.W, decay), (model.b, 0.0)]
        self.state = [(torch.zeros_like(p), torch.zeros_like(p)) for p, _ in self.groups]
        self.t = 0

    @torch.no_grad()
    def step(self, rates, eps=1e-8):
        self.t += 1
        for (p, decay), (m, v), lr in zip(self.groups, self.state, rates):
            g = p.grad
            if decay >= 0:
                p.mul_(1 - lr * decay)
            else:
                rho = p.norm(dim=1, keepdim=True) + eps
                p.add_(lr * decay * p * (1 - 1 / rho))
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            p.sub_(lr / (1 - 0.9**self.t) * m / (v.sqrt() / math.sqrt(1 - 0.999**self.t) + eps))


def small_rate(step, steps, peak=1e-2, warmup=2000, floor=0.05):
    """The learning rate of the small runs, for W and b."""
    s, low = step + 1, floor * peak
    if warmup < steps:
        if s < warmup:
            return peak * s / warmup
        return (peak - low) * 0.5 * (1 + math.cos(math.pi * (s - warmup) / (steps - warmup))) + low
    return (peak - low) * 0.5 * (1 + math.cos(math.pi * s / steps)) + low


def large_rates(step, steps, m):
    """The learning rates of W and b in the large runs."""
    factor = small_rate(step, steps, 1.0, int(0.05 * steps))
    return 0.02 * (8 / m) ** 0.25 * factor, 2 / m * factor


def train(weight, bias, batches, decay, rates, scale=1.0):
    """Train on dense batches; returns W, b and the mean squared error of every step, before its
    update."""
    model = Autoencoder(weight, bias)
    optimizer = Optimizer(model, decay)
    losses = []
    for step, x in enumerate(batches):
        model.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        (loss * scale).backward()
        optimizer.step(rates(step))
        losses.append(loss.item())
    return model.W.detach(), model.b.detach(), losses


def adam_joint_fit(widths, losses, groups, steps=20000):
    """L = A / m^alpha + B_group by full-batch Adam, as published; returns alpha, A and the
    offsets."""
    names = list(dict.fromkeys(groups))
    m = torch.tensor(widths, dtype=torch.float64)
    y = torch.tensor(losses, dtype=torch.float64)
    index = torch.tensor([names.index(group) for group in groups])
    factor = torch.tensor(500.0, dtype=torch.float64, requires_grad=True)
    exponent = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    offsets = torch.ones(len(names), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [factor], "lr": 1.0}, {"params": [offsets, exponent], "lr": 1e-3}]
    )
    for _ in range(steps):
        optimizer.zero_grad()
        ((factor / m**exponent + offsets[index] - y) ** 2).mean().backward()
        optimizer.step()
    return exponent.item(), factor.item(), offsets.detach().tolist()
