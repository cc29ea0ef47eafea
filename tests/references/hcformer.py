"""HCFormer written the slow way: the yardstick of the benchmark and of the tests.

Every step follows the published formulation as literally as PyTorch allows: ``(M, N, C)`` products
for aggregation and dispatch, broadcast pairwise distances, the position bias repeated over the
batch, padding and concatenation materialised. Module names are those of the official checkpoints,
so that its ``state_dict`` stands in for one. Nothing here is used by the package itself.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VARIANTS = {
    "hcformer_nano": dict(
        layers=(2, 2, 6, 2), dims=(32, 64, 196, 224), heads=(4, 4, 8, 8), head_dim=16
    ),
    "hcformer_tiny": dict(
        layers=(2, 2, 6, 2), dims=(32, 64, 196, 320), heads=(4, 4, 8, 8), head_dim=24
    ),
    "hcformer_small": dict(
        layers=(2, 2, 6, 2), dims=(64, 128, 320, 512), heads=(4, 4, 8, 8), head_dim=32
    ),
    "hcformer_medium": dict(
        layers=(4, 4, 12, 4), dims=(64, 128, 320, 512), heads=(6, 6, 12, 12), head_dim=32
    ),
}


def arcosh64(z: Tensor) -> Tensor:
    z = z.double()
    return torch.log(z + torch.sqrt(torch.clamp(z * z - 1, min=1e-15)))


def ambient_expmap0(u: Tensor, k: float) -> Tensor:
    """Exponential map at the origin that reads ``u[..., 0]`` as a time coordinate, as geoopt's does
    for a d-vector."""
    squared = -(u[..., :1] ** 2) + (u[..., 1:] ** 2).sum(-1, keepdim=True)
    s = squared.clamp(min=1e-8).sqrt()
    space = math.sqrt(k) * torch.sinh(s / math.sqrt(k)) * u[..., 1:] / s
    time = torch.sqrt(k + (space**2).sum(-1, keepdim=True))
    return torch.cat([time, space], -1)


class ClusterMixer(nn.Module):
    def __init__(
        self, dim, heads, head_dim, fold, prop, win, nominal, is_global, curvature=1.0,
        patch="euclidean", window="hyperbolic", shift=False,
    ):  # fmt: skip
        super().__init__()
        self.patch, self.window, self.shift = patch, window, shift
        self.heads, self.head_dim, self.fold, self.prop, self.win = heads, head_dim, fold, prop, win
        self.is_global, self.k = is_global, 1.0 / curvature
        self.f = nn.Conv2d(dim, heads * head_dim, 1)
        self.v = nn.Conv2d(dim, heads * head_dim, 1)
        self.proj = nn.Conv2d(heads * head_dim * (2 if is_global else 1), dim, 1)
        self.sim_alpha = nn.Parameter(torch.ones(1))
        self.relative_position_bias = nn.Parameter(
            torch.zeros(heads, prop * prop, nominal, nominal)
        )
        if is_global:
            self.sim_alpha2 = nn.Parameter(torch.ones(1))
            self.relative_position_bias2 = nn.Parameter(torch.zeros(heads, win * win, fold, fold))

    @staticmethod
    def aggregate_and_dispatch(assignment: Tensor, value: Tensor, value_centers: Tensor) -> Tensor:
        a = assignment.unsqueeze(-1)  # (b, M, N, 1)
        centers = ((value.unsqueeze(1) * a).sum(2) + value_centers) / (a.sum(2) + 1)  # (b, M, d)
        return (centers.unsqueeze(2) * a).sum(1)  # (b, N, d)

    def split(self, x: Tensor) -> Tensor:
        """(b, d, H, W) -> (b, windows, N, d)."""
        b, d, h, w = x.shape
        n = self.fold
        x = x.reshape(b, d, n, h // n, n, w // n).permute(0, 2, 4, 3, 5, 1)
        return x.reshape(b, n * n, (h // n) * (w // n), d)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        pad_h, pad_w = self.fold - height % self.fold, self.fold - width % self.fold
        left, top = pad_w // 2, pad_h // 2
        x = F.pad(x, (left, pad_w - left, top, pad_h - top), mode="reflect")
        half = [side // self.fold // 2 for side in x.shape[-2:]] if self.shift else [0, 0]
        x = torch.roll(x, [-half[0], -half[1]], [2, 3])
        feature, value = self.f(x), self.v(x)
        b, _, h, w = feature.shape
        e, d, n = self.heads, self.head_dim, self.fold
        feature, value = feature.reshape(b * e, d, h, w), value.reshape(b * e, d, h, w)
        hw, ww = h // n, w // n

        windows = self.split(feature)
        windows_value = self.split(value)
        b2 = b * e * n * n
        local = windows.reshape(b2, hw, ww, d).permute(0, 3, 1, 2)
        local_value = windows_value.reshape(b2, hw, ww, d).permute(0, 3, 1, 2)
        centers = F.adaptive_avg_pool2d(local, self.prop).flatten(2).transpose(1, 2)
        value_centers = F.adaptive_avg_pool2d(local_value, self.prop).flatten(2).transpose(1, 2)
        points, points_value = (
            windows.reshape(b2, hw * ww, d),
            windows_value.reshape(b2, hw * ww, d),
        )
        similarity = self.similarity(centers, points, self.patch)
        bias = nn.Upsample(size=(h, w), mode="bilinear", align_corners=True)(
            self.relative_position_bias
        )
        bias = bias.repeat(b, 1, 1, 1)
        bias = self.split(bias).permute(0, 1, 3, 2).reshape(b2, self.prop**2, hw * ww)
        assignment = (bias + self.sim_alpha * similarity).softmax(1)
        out = self.aggregate_and_dispatch(assignment, points_value, value_centers)
        out = (
            out.reshape(b, e, n, n, hw, ww, d).permute(0, 1, 6, 2, 4, 3, 5).reshape(b, e * d, h, w)
        )

        if self.is_global:
            points = windows.mean(2)  # (b e, windows, d)
            points_value = windows_value.mean(2)
            centers = F.adaptive_avg_pool2d(feature, self.win).flatten(2).transpose(1, 2)
            value_centers = F.adaptive_avg_pool2d(value, self.win).flatten(2).transpose(1, 2)
            bias = self.relative_position_bias2.flatten(2).repeat(b, 1, 1)
            assignment = (
                bias + self.sim_alpha2 * self.similarity(centers, points, self.window)
            ).softmax(1)
            mixed = self.aggregate_and_dispatch(assignment, points_value, value_centers)
            mixed = mixed.transpose(1, 2).reshape(b, e * d, n, n)
            mixed = nn.Upsample(size=(h, w), mode="nearest")(mixed)
            out = torch.cat([out, mixed], 1)

        out = torch.roll(out, half, [2, 3])
        out = out[:, :, top : top + height, left : left + width]
        return self.proj(out)

    def similarity(self, centers: Tensor, points: Tensor, geometry: str) -> Tensor:
        """(b, K, d), (b, N, d) -> (b, K, N): cosines, or minus distances of lifted features."""
        if geometry == "euclidean":
            return F.normalize(centers, dim=-1) @ F.normalize(points, dim=-1).transpose(1, 2)

        def lift(u):
            u = u * torch.clamp(1.0 / u.norm(dim=-1, keepdim=True).clamp(min=1e-12), max=1.0)
            return ambient_expmap0(u, self.k)

        product = lift(centers).unsqueeze(2) * lift(points).unsqueeze(1)  # (b, K, N, d)
        inner = -product[..., 0] + product[..., 1:].sum(-1)
        return -(math.sqrt(self.k) * arcosh64(-inner / self.k)).to(points.dtype)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio, **mixer):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, dim), nn.GroupNorm(1, dim)
        self.token_mixer = ClusterMixer(dim, **mixer)
        self.mlp = Mlp(dim, mlp_ratio * dim)
        self.layer_scale_1 = nn.Parameter(torch.full((dim,), 1e-5))
        self.layer_scale_2 = nn.Parameter(torch.full((dim,), 1e-5))

    def forward(self, x):
        x = x + self.layer_scale_1[:, None, None] * self.token_mixer(self.norm1(x))
        return x + self.layer_scale_2[:, None, None] * self.mlp(self.norm2(x))


class Proj(nn.Module):
    def __init__(self, *conv, **kwargs):
        super().__init__()
        self.proj = nn.Conv2d(*conv, **kwargs)

    def forward(self, x):
        return self.proj(x)


class ReferenceHCFormer(nn.Module):
    """The network of the sheet; ``dense=True`` returns the four normalised stage maps instead of
    logits."""

    def __init__(
        self, variant: str, num_classes: int = 1000, dense: bool = False, curvature: float = 1.0
    ):
        super().__init__()
        spec = VARIANTS[variant]
        dims, self.dense = spec["dims"], dense
        self.patch_embed = Proj(3, dims[0], 4, stride=4)
        network: list[nn.Module] = []
        for i in range(4):
            mixer = dict(
                heads=spec["heads"][i],
                head_dim=spec["head_dim"],
                fold=(7, 7, 1, 1)[i],
                prop=(4, 2, 7, 4)[i],
                win=(4, 4, 1, 1)[i],
                nominal=(56, 28, 14, 7)[i],
                is_global=i < 3,
                curvature=curvature,
            )
            network.append(
                nn.Sequential(
                    *(Block(dims[i], (8, 8, 4, 4)[i], **mixer) for _ in range(spec["layers"][i]))
                )
            )
            if i < 3:
                network.append(Proj(dims[i], dims[i + 1], 3, stride=2, padding=1))
        self.network = nn.ModuleList(network)
        if dense:
            for i in range(4):
                self.add_module(f"norm{2 * i}", nn.GroupNorm(1, dims[i]))
        else:
            self.norm, self.head = nn.GroupNorm(1, dims[-1]), nn.Linear(dims[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        x = self.patch_embed(x)
        maps = []
        for i, module in enumerate(self.network):
            x = module(x)
            if self.dense and i % 2 == 0:
                maps.append(getattr(self, f"norm{i}")(x))
        return maps if self.dense else self.head(self.norm(x).mean((2, 3)))
