"""What TorchScript gets in place of the layers: their evaluation, written out for fixed curvatures.

``torch.jit.script`` understands neither manifold objects nor functions with a backward of their own. The layers name
these forms in ``__prepare_scriptable__``.
"""

# No postponed annotations in this file: TorchScript could not resolve their strings.
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.errors import HypvisionError
from hypvision.geometry.numerics import asinh, asinhc_sqrt, sinhc_sqrt, squash_factor

from .functional import rescale_limit

__all__ = ["Classifier", "Conv", "EfficientConv", "GlobalPool", "Norm", "Radial", "Residual"]


def number(c: float | Tensor) -> float:
    """A curvature as a number."""
    return c.detach().item() if isinstance(c, Tensor) else float(c)


def _square(x: Tensor) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    return (x * x).sum(1, keepdim=True)


def _rescale(x: Tensor, c: float, limit: float, slope: float) -> Tensor:
    q = _square(x) * c
    shrink = asinhc_sqrt(q)
    inner = shrink * squash_factor(q * shrink * shrink / c, limit, slope)
    return x * (inner * sinhc_sqrt(q * inner * inner)).to(x.dtype)


class Conv(nn.Module):
    """:class:`~hypvision.nn.LorentzConv2d`."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.time_weight = nn.Parameter(layer.time_weight.detach().view(-1, 1, 1))
        self.register_buffer("ones", torch.ones(1, 1, *layer.kernel_size, device=layer.weight.device))
        self.stride, self.padding, self.dilation = list(layer.stride), list(layer.padding), list(layer.dilation)
        self.k = 1 / number(layer.manifold.c)

    def forward(self, x: Tensor) -> Tensor:
        out = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        square = _square(x)
        square = F.conv2d(square, self.ones.to(square.dtype), None, self.stride, self.padding, self.dilation)
        return out + self.time_weight.to(out.dtype) * torch.sqrt(square + self.k).to(out.dtype)


class EfficientConv(nn.Module):
    """:class:`~hypvision.nn.EfficientLorentzConv2d`."""

    def __init__(self, layer):
        super().__init__()
        with torch.no_grad():
            weight = layer.matrix().reshape(layer.weight.shape).to(layer.weight.dtype)
        self.weight = nn.Parameter(weight.clone())
        self.register_buffer("ones", torch.ones(1, 1, *layer.kernel_size, device=weight.device))
        self.stride, self.padding = list(layer.stride), list(layer.padding)
        self.match = 0 if layer.expanding or layer.norm_match == "none" else 1 if layer.norm_match == "patch" else 2
        self.boost = ("none", "axis", "scale", "full").index(layer.boost)
        given = layer.boost_weight.detach().double() if layer.boost != "none" else torch.zeros(1)
        self.amount = given[0].item()
        length = given.norm()
        self.register_buffer("heading", (given / length.clamp(min=1e-12)).to(weight.dtype).view(1, -1, 1, 1))
        self.speed = torch.sigmoid(length).item()
        self.gamma = 1 / math.sqrt(1 - self.speed**2)
        self.c = number(layer.manifold.c)
        self.slope = 0.0 if layer.slope is None else layer.slope
        self.limit = float(rescale_limit(self.c, layer.limit))

    def forward(self, x: Tensor) -> Tensor:
        out = F.conv2d(x, self.weight, None, self.stride, self.padding)
        if self.match > 0:
            square = _square(x)
            ones = self.ones.to(square.dtype)
            if self.match == 1:
                patch = torch.sqrt(F.conv2d(square, ones, None, self.stride, self.padding))
            else:
                patch = F.conv2d(torch.sqrt(square), ones, None, self.stride, self.padding)
            out = out * (patch / torch.sqrt(_square(out)).clamp(min=1e-12)).to(out.dtype)
        if self.boost == 2:
            q = _square(out) * self.c
            factor = asinhc_sqrt(q) * self.amount
            out = out * (factor * sinhc_sqrt(q * factor * factor)).to(out.dtype)
        elif self.boost > 0:
            time = torch.sqrt(_square(out) + 1 / self.c).to(out.dtype)
            if self.boost == 1:
                last = math.sinh(self.amount) * time + math.cosh(self.amount) * out[:, -1:]
                out = torch.cat([out[:, :-1], last], 1)
            else:
                along = (out * self.heading).sum(1, keepdim=True)
                out = out + self.heading * ((self.gamma - 1) * along - self.gamma * self.speed * time)
        return _rescale(out, self.c, self.limit, self.slope) if self.slope > 0 else out


class Norm(nn.Module):
    """:class:`~hypvision.nn.LorentzBatchNorm2d` with its running statistics."""

    def __init__(self, layer):
        super().__init__()
        if layer.training:
            raise HypvisionError("TorchScript takes Lorentz batch norms with running statistics: call .eval() before.")
        with torch.no_grad():
            c = number(layer.manifold.c)
            root = math.sqrt(c)
            tangent = layer.running_mean.double() * root
            length = tangent.norm()
            mean = tangent * sinhc_sqrt(length * length)
            beta = layer.beta.double()[1:] * root
            self.mean_time, self.mean_square = torch.cosh(length).item(), (mean * mean).sum().item()
            self.beta_time, self.cross = torch.sqrt(1 + (beta * beta).sum()).item(), (mean * beta).sum().item()
            self.register_buffer("basis", torch.stack([mean, beta]).to(layer.running_mean.dtype))
            variance, gamma = layer.running_var.double().item(), layer.gamma.double().item()
            if layer.gyro:
                self.gain = math.exp(gamma) / math.sqrt(variance + layer.eps)
            else:
                self.gain = gamma / (variance + layer.eps)
        self.c, self.root = c, root
        self.slope = 0.0 if layer.slope is None else layer.slope
        self.limit = float(rescale_limit(c, layer.limit))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        basis = self.basis.to(x.dtype)
        flat = x.flatten(2) * self.root
        q = _square(flat)
        along = torch.matmul(basis, flat)
        along_mean, along_beta = along[:, :1], along[:, 1:]
        time = torch.sqrt(1 + q)
        gap = (q - self.mean_square) / (time + self.mean_time)
        chord = (q + self.mean_square - 2 * along_mean - gap * gap).clamp(min=0)
        q = chord * (1 + chord / 4)  # squared sinh of the radius
        shrink = asinhc_sqrt(q)
        gain = torch.full_like(q, self.gain)
        if self.slope > 0:
            gain = gain * squash_factor(q * shrink * shrink * (self.gain * self.gain / self.c), self.limit, self.slope)
        inner = shrink * gain
        factor = inner * sinhc_sqrt((q * inner * inner).clamp(max=100.0))  # radii of at most norm.LIMIT
        arrived = torch.sqrt(1 + q * factor * factor)
        c1 = (time + 1 + chord / 2) / (self.mean_time + 1) * factor
        final = self.beta_time * arrived + factor * along_beta - c1 * self.cross
        c2 = (arrived + final) / (self.beta_time + 1)
        out = factor * flat + torch.matmul(basis.t(), torch.cat([-c1, c2], 1))
        return (out / self.root).reshape(x.shape).to(dtype)


class Residual(nn.Module):
    """:class:`~hypvision.nn.LorentzResidual` of space parts."""

    def __init__(self, layer):
        super().__init__()
        if layer.mode != "space" or layer.dim != 1:
            raise HypvisionError(f"TorchScript takes residual connections of maps by space parts, got {layer}.")
        self.c = number(layer.manifold.c)
        self.slope = 0.0 if layer.slope is None else layer.slope
        self.limit = float(rescale_limit(self.c, layer.limit))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return _rescale(x + y, self.c, self.limit, self.slope) if self.slope > 0 else x + y


class Radial(nn.Module):
    """The maps of :mod:`hypvision.nn.transition`: logarithm, rescaling or clipping, exponential, each if wanted.

    Args:
        source: curvature of points that come in; 0 for tangent vectors.
        slope: of the rescaling; 0 for none.
        clip: largest length; 0 for any.
        target: curvature of points that go out; 0 for no exponential.
        limit: of the rescaling.
    """

    def __init__(self, source: float, slope: float, clip: float, target: float, limit: float):
        super().__init__()
        self.source, self.slope, self.clip, self.target, self.limit = source, slope, clip, target, limit

    def forward(self, x: Tensor) -> Tensor:
        square = _square(x)
        factor = asinhc_sqrt(square * self.source) if self.source > 0 else torch.ones_like(square)
        if self.clip > 0:
            factor = self.clip / torch.sqrt(square.clamp(min=self.clip * self.clip))
        if self.slope > 0:
            factor = factor * squash_factor(square * factor * factor, self.limit, self.slope)
        if self.target > 0:
            factor = factor * sinhc_sqrt(square * factor * factor * self.target)
        return x * factor.to(x.dtype)


class GlobalPool(nn.Module):
    """:class:`~hypvision.nn.LorentzGlobalAvgPool2d`."""

    def __init__(self, layer):
        super().__init__()
        self.c, self.keepdim = number(layer.manifold.c), layer.keepdim

    def forward(self, x: Tensor) -> Tensor:
        time = torch.sqrt(_square(x) + 1 / self.c).mean([2, 3])
        space = x.to(time.dtype).mean([2, 3])
        length = torch.sqrt((space * space).sum(1, keepdim=True))
        out = space / torch.sqrt(((time - length) * (time + length) * self.c).clamp(min=1.0))
        return out[:, :, None, None].to(x.dtype) if self.keepdim else out.to(x.dtype)


class Classifier(nn.Module):
    """Lorentz multinomial logistic regression."""

    def __init__(self, weight: Tensor, bias: Tensor, c: float | Tensor):
        super().__init__()
        with torch.no_grad():
            self.k, self.root = 1 / number(c), math.sqrt(number(c))
            length = weight.double().norm(dim=-1)
            angle = (bias.double() * self.root).clamp(-40, 40)
            unit = weight.double() / length.clamp(min=1e-30).unsqueeze(-1)
            self.register_buffer("normals", (unit * (self.root * torch.cosh(angle)).unsqueeze(-1)).to(weight.dtype))
            self.register_buffer("offsets", (self.root * torch.sinh(angle)).to(weight.dtype))
            self.register_buffer("scale", (length / self.root).to(weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        time = torch.sqrt((x * x).sum(-1, keepdim=True) + self.k)
        out = F.linear(x, self.normals.to(x.dtype)) - time * self.offsets.to(x.dtype)
        return (asinh(out) * self.scale.to(x.dtype)).to(dtype)
