"""The published form of Lorentz ResNets, step by step, to test and measure against.

Points are stored channels-last with time in front, patches are unfolded and concatenated, and batch
norm takes logarithms, transports and exponentials of whole maps, as kschwethelm/HyperbolicCV does;
parameter names are those of its checkpoints. Written anew from the equations of "Fully Hyperbolic
Convolutional Neural Networks for Computer Vision" (ICLR 2024), with the numerical floors of that
code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTHS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def arcosh(x: Tensor) -> Tensor:
    x = x.double()
    return torch.log(x + torch.sqrt((x * x - 1).clamp(min=1e-15)))


def inner(u: Tensor, v: Tensor) -> Tensor:
    product = u * v
    return product[..., 1:].sum(-1, keepdim=True) - product[..., :1]


class Hyperboloid(nn.Module):
    """Points with ``<x, x> = -k``; the exponential map cuts vectors at the length ``limit`` times
    ``sqrt(k)``."""

    def __init__(self, k: float = 1.0, limit: float = 10.0):
        super().__init__()
        self.limit = limit
        self.register_buffer("k", torch.tensor(float(k)))

    def points(self, space: Tensor) -> Tensor:
        return torch.cat([torch.sqrt(self.k + (space * space).sum(-1, keepdim=True)), space], -1)

    def origin(self, like: Tensor) -> Tensor:
        out = torch.zeros_like(like)
        out[..., 0] = torch.sqrt(self.k)
        return out

    def length(self, u: Tensor) -> Tensor:
        return torch.sqrt(inner(u, u).clamp(min=0) + 1e-8)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        length = self.length(u) / torch.sqrt(self.k)
        size = length.clamp(max=self.limit)
        return self.points((torch.cosh(size) * x + torch.sinh(size) * (u / length))[..., 1:])

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        product = inner(x, y)
        distance = (torch.sqrt(self.k) * arcosh(-product / self.k)).to(x.dtype)
        direction = y + product / self.k * x
        return distance / self.length(direction) * direction

    def transport(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v + inner(y, v) / (self.k - inner(x, y)) * (x + y)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Of points ``(..., N, n + 1)``."""
        mean = x.mean(-2) if weights is None else (weights.unsqueeze(-1) * x).sum(-2)
        return torch.sqrt(self.k) * mean / torch.sqrt(inner(mean, mean).abs().clamp(min=1e-8))


class FullyConnected(nn.Module):
    """Linear map of whole points; the first row of the weight is dead."""

    def __init__(self, manifold: Hyperboloid, inside: int, outside: int):
        super().__init__()
        self.manifold = manifold
        self.weight = nn.Linear(inside, outside)
        self.scale = nn.Parameter(torch.tensor(2.3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.manifold.points(self.weight(x)[..., 1:])


class Conv(nn.Module):
    """Lorentz convolution of maps ``(B, H, W, C + 1)``."""

    def __init__(
        self, manifold: Hyperboloid, inside: int, outside: int, kernel: int, stride: int = 1
    ):
        super().__init__()
        self.manifold, self.kernel, self.stride, self.padding = (
            manifold,
            kernel,
            stride,
            kernel // 2,
        )
        self.linearized_kernel = FullyConnected(manifold, inside * kernel * kernel + 1, outside + 1)
        bound = (2 / (inside * kernel * kernel)) ** 0.5
        nn.init.uniform_(self.linearized_kernel.weight.weight, -bound, bound)
        nn.init.uniform_(self.linearized_kernel.weight.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        count = self.kernel * self.kernel
        patches = F.unfold(
            x.permute(0, 3, 1, 2), self.kernel, padding=self.padding, stride=self.stride
        )
        patches = patches.permute(0, 2, 1).reshape(batch, -1, channels, count)
        root = torch.sqrt(self.manifold.k)
        times = torch.clamp(patches[:, :, 0], min=root)  # what was padded becomes the origin
        time = torch.sqrt((times * times).sum(-1, keepdim=True) - (count - 1) * self.manifold.k)
        space = patches[:, :, 1:].transpose(2, 3).reshape(batch, -1, count * (channels - 1))
        out = self.linearized_kernel(torch.cat([time, space], -1))
        rows = (height + 2 * self.padding - self.kernel) // self.stride + 1
        return out.reshape(batch, rows, -1, out.shape[-1])


class BatchNorm(nn.Module):
    """Lorentz batch norm of maps ``(B, H, W, C + 1)``."""

    def __init__(
        self, manifold: Hyperboloid, channels: int, eps: float = 1e-5, momentum: float = 0.1
    ):
        super().__init__()
        self.manifold, self.eps, self.momentum = manifold, eps, momentum
        self.beta = nn.Parameter(manifold.origin(torch.zeros(channels + 1)))
        self.gamma = nn.Parameter(torch.ones(1))
        self.register_buffer("running_mean", torch.zeros(channels + 1))
        self.register_buffer("running_var", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        shape, manifold = x.shape, self.manifold
        x = x.flatten(1, 2)
        origin = manifold.origin(self.running_mean)
        if self.training:
            mean = manifold.centroid(manifold.centroid(x))
        else:
            mean = manifold.expmap(origin, self.running_mean)
        tangent = manifold.transport(mean, origin, manifold.logmap(mean.expand_as(x), x))
        var = tangent.norm(dim=-1).mean() if self.training else self.running_var
        scaled = manifold.transport(origin, self.beta, tangent * (self.gamma / (var + self.eps)))
        out = manifold.expmap(self.beta, scaled)
        if self.training:
            with torch.no_grad():
                pair = torch.stack([manifold.expmap(origin, self.running_mean), mean])
                weights = torch.tensor(
                    [1 - self.momentum, self.momentum], dtype=x.dtype, device=x.device
                )
                self.running_mean.copy_(manifold.logmap(origin, manifold.centroid(pair, weights)))
                self.running_var.mul_(1 - self.momentum).add_(self.momentum * var)
        return out.reshape(shape)


class ReLU(nn.Module):
    def __init__(self, manifold: Hyperboloid):
        super().__init__()
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        return self.manifold.points(x[..., 1:].relu())


class Block(nn.Module):
    """Basic block or bottleneck, of points or, with ``manifold=None``, of Euclidean maps."""

    def __init__(
        self, manifold: Hyperboloid | None, inside: int, width: int, stride: int, bottleneck: bool
    ):
        super().__init__()
        self.manifold = manifold
        outside = width * 4 if bottleneck else width

        def conv(a: int, b: int, kernel: int, step: int = 1) -> list[nn.Module]:
            if manifold is None:
                return [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b)]
            return [Conv(manifold, a, b, kernel, step), BatchNorm(manifold, b)]

        self.activation = nn.ReLU() if manifold is None else ReLU(manifold)
        if bottleneck:
            parts = [
                *conv(inside, width, 1),
                self.activation,
                *conv(width, width, 3, stride),
                self.activation,
            ]
            parts += conv(width, outside, 1)
        else:
            parts = [*conv(inside, width, 3, stride), self.activation, *conv(width, width, 3)]
        self.conv = nn.Sequential(*parts)
        self.shortcut = nn.Sequential(
            *(conv(inside, outside, 1, stride) if stride > 1 or inside != outside else [])
        )

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.conv(x), self.shortcut(x)
        if self.manifold is None:
            return self.activation(x + y)
        return self.activation(self.manifold.points((y + x)[..., 1:]))


class Stem(nn.Module):
    def __init__(self, manifold: Hyperboloid, inside: int, width: int):
        super().__init__()
        self.manifold = manifold
        self.conv = nn.Sequential(
            Conv(manifold, inside, width, 3), BatchNorm(manifold, width), ReLU(manifold)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Pool(nn.Module):
    def __init__(self, manifold: Hyperboloid):
        super().__init__()
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        return self.manifold.centroid(x.flatten(1, 2))


class Encoder(nn.Module):
    def __init__(self, depth: int, manifold: Hyperboloid | None, widths, layers):
        super().__init__()
        if manifold is not None:
            self.manifold = manifold
            self.conv1, self.avg_pool = Stem(manifold, 3, widths[0]), Pool(manifold)
        else:
            self.conv1 = nn.Sequential(
                nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
            )
        channels = widths[0]
        for i, (count, width) in enumerate(zip(layers or DEPTHS[depth], widths)):
            blocks = []
            for j in range(count):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(Block(manifold, channels, width, stride, depth == 50))
                channels = width * (4 if depth == 50 else 1)
            self.add_module(f"conv{i + 2}_x", nn.Sequential(*blocks))
        self.channels, self.flat = channels, manifold is None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.flat else self.manifold.points(x.permute(0, 2, 3, 1))
        x = self.conv5_x(self.conv4_x(self.conv3_x(self.conv2_x(self.conv1(x)))))
        return x.mean((2, 3)) if self.flat else self.avg_pool(x)


class MLR(nn.Module):
    def __init__(self, manifold: Hyperboloid, features: int, classes: int):
        super().__init__()
        self.manifold = manifold
        self.a = nn.Parameter(torch.empty(classes).uniform_(-(features**-0.5), features**-0.5))
        self.z = nn.Parameter(
            torch.empty(classes, features).uniform_(-(features**-0.5), features**-0.5)
        )

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(self.manifold.k)
        length, angle = self.z.norm(dim=-1), self.a / root
        alpha = (
            torch.cosh(angle) * (x[..., 1:] @ self.z.t()) - torch.sinh(angle) * length * x[..., :1]
        )
        beta = torch.sqrt(torch.cosh(angle) ** 2 - torch.sinh(angle) ** 2) * length
        return alpha.sign() * beta * (root * torch.asinh(alpha / (root * beta))).abs()


class ReferenceLorentzResNet(nn.Module):
    """L-ResNet, or EL-ResNet with a Euclidean encoder.

    Args:
        depth: 18 or 50.
        num_classes: classes.
        k, head_k: ``-<x, x>`` of encoder and decoder.
        hybrid: Euclidean encoder, clipped to norm ``clip``.
        widths, layers: channels and blocks of the stages.
    """

    def __init__(
        self, depth=18, num_classes=100, k=1.0, head_k=1.0, hybrid=False, clip=1.0,
        widths=(64, 128, 256, 512), layers=None,
    ):  # fmt: skip
        super().__init__()
        self.clip = clip
        self.enc_manifold = None if hybrid else Hyperboloid(k)
        self.dec_manifold = Hyperboloid(head_k)
        self.encoder = Encoder(depth, self.enc_manifold, widths, layers)
        self.decoder = MLR(self.dec_manifold, self.encoder.channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        if self.enc_manifold is None:
            length = x.norm(dim=-1, keepdim=True)
            x = F.pad(torch.minimum(torch.ones_like(length), self.clip / length) * x, (1, 0))
            x = self.dec_manifold.expmap(self.dec_manifold.origin(x), x)
        elif self.enc_manifold.k != self.dec_manifold.k:
            x = self.enc_manifold.logmap(self.enc_manifold.origin(x), x)
            x = self.dec_manifold.expmap(self.dec_manifold.origin(x), x)
        return self.decoder(x)
