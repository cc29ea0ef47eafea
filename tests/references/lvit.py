"""HyperCore's LViT, whole points in float64, from weights under its names."""

import math

import torch
import torch.nn.functional as F


def with_time(space, k):
    return torch.cat([(k + space.square().sum(-1, keepdim=True)).sqrt(), space], -1)


def inner(x, y):
    return (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True) - x[..., :1] * y[..., :1]


def normalised(m, k, floor):
    return math.sqrt(k) * m / (-inner(m, m)).clamp(min=floor).sqrt()


def residual(x, y, w, scale, k):
    m = normalised(x + w * y, k, 1e-4)
    return with_time(m[..., 1:] * scale, k)


def linear(x, weights, name, k):
    return with_time(F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"]), k)


def attention(x, weights, name, heads, k):
    def split(part):
        y = F.linear(x, weights[f"{name}.{part}.weight"], weights[f"{name}.{part}.bias"])
        return with_time(y.unflatten(-1, (heads, -1)).transpose(1, 2), k)

    q, key, value = split("Wq"), split("Wk"), split("Wv")
    products = q[..., 1:] @ key[..., 1:].transpose(-1, -2) - q[..., :1] @ key[..., :1].transpose(
        -1, -2
    )
    scores = (2 * k + 2 * products) / weights[f"{name}.scale"] + weights[f"{name}.bias"]
    mean = normalised(scores.softmax(-1) @ value, k, 1e-8)
    joined = mean.transpose(1, 2).flatten(2)
    return linear(joined, weights, f"{name}.final_linear", k)


def layer_norm(x, weights, name, k):
    space = x[..., 1:]
    return with_time(
        F.layer_norm(
            space,
            space.shape[-1:],
            weights[f"{name}.layer.weight"],
            weights[f"{name}.layer.bias"],
            1e-5,
        ),
        k,
    )


def mlr(x, a, z, k):
    """Lorentz multinomial logistic regression (Bdeir et al., ICLR 2024)."""
    root_k = math.sqrt(k)
    norm = z.norm(dim=-1)
    w_t = torch.sinh(a / root_k) * norm
    w_s = torch.cosh(a / root_k)[:, None] * z
    beta = (w_s.square().sum(-1) - w_t.square()).clamp(min=0).sqrt()
    alpha = -w_t * x[..., :1] + torch.cosh(a / root_k) * (x[..., 1:] @ z.T)
    return root_k * alpha.sign() * beta * torch.asinh(alpha / (root_k * beta)).abs()


def logits(images, weights, depth, heads, patch, scale, k):
    """Logits (B, K) of images (B, 3, H, W); k of the stem, of the blocks and of the head."""
    first, k, last = k
    b, channels, height, width = images.shape
    # patches by position, then channel; one time for a patch
    patches = images.unfold(2, patch, patch).unfold(3, patch, patch)
    patches = patches.permute(0, 2, 3, 4, 5, 1).reshape(b, -1, patch * patch, channels)
    times = first + patches.square().sum(-1)
    # the time of a concatenation: sqrt(sum of squares - (n - 1) k)
    time = (times.sum(-1, keepdim=True) - (patch * patch - 1) * first).sqrt()
    kernel = "patch_embedding.projection.linearized_kernel.linear"
    x = linear(torch.cat([time, patches.flatten(2)], -1), weights, kernel, first)
    x = residual(x, weights["pe"], weights["add_pos.w_y"], 1.0, first)
    for i in range(depth):
        block = f"encoder.blocks.{i}"
        x = layer_norm(x, weights, f"{block}.layernorm_1", k)
        y = attention(x, weights, f"{block}.attention", heads, k)
        x = residual(x, y, weights[f"{block}.residual_1.w_y"], scale, k)
        y = layer_norm(x, weights, f"{block}.layernorm_2", k)
        y = linear(y, weights, f"{block}.mlp.dense_1.linear", k)
        y = with_time(F.gelu(y[..., 1:]), k)
        y = linear(y, weights, f"{block}.mlp.dense_2.linear", k)
        x = residual(x, y, weights[f"{block}.residual_2.w_y"], scale, k)
    x = with_time(x[..., 1:], last)
    pooled = normalised(x.mean(1, keepdim=True), last, 1e-8)[:, 0]
    return mlr(pooled, weights["classifier.a"], weights["classifier.z"], last)


def random_weights(width, heads, head_dim, hidden, depth, patch, grid, classes, k, seed=0):
    """Weights under HyperCore's names; widths of space; k of the stem, the blocks and the head."""
    first, inside, last = k
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, std=0.1):
        return std * torch.randn(shape, generator=generator, dtype=torch.float64)

    kernel = "patch_embedding.projection.linearized_kernel.linear"
    pe = with_time(draw(1, grid * grid, width, std=0.5), first)
    weights = {
        f"{kernel}.weight": draw(width, 3 * patch * patch + 1),
        f"{kernel}.bias": draw(width),
        "pe": pe,
        "add_pos.w_y": 1 + draw(1),
        "add_pos.manifold.k": torch.tensor([first], dtype=torch.float64),
        "add_pos.c": torch.tensor([first], dtype=torch.float64),
        "encoder.blocks.0.mlp.manifold.k": torch.tensor([inside], dtype=torch.float64),
        "classifier.manifold.k": torch.tensor([last], dtype=torch.float64),
        "classifier.a": draw(classes),
        "classifier.z": draw(classes, width, std=1.0),
    }
    for i in range(depth):
        block = f"encoder.blocks.{i}"
        for part in ("Wq", "Wk", "Wv"):
            weights[f"{block}.attention.{part}.weight"] = draw(heads * head_dim, width + 1)
            weights[f"{block}.attention.{part}.bias"] = draw(heads * head_dim)
        weights[f"{block}.attention.final_linear.weight"] = draw(width, heads * (head_dim + 1))
        weights[f"{block}.attention.final_linear.bias"] = draw(width)
        weights[f"{block}.attention.scale"] = 3 + draw(1)
        weights[f"{block}.attention.bias"] = draw()
        for n in (1, 2):
            weights[f"{block}.layernorm_{n}.layer.weight"] = 1 + draw(width)
            weights[f"{block}.layernorm_{n}.layer.bias"] = draw(width)
            weights[f"{block}.residual_{n}.w_y"] = 1 + draw(1)
        for name, outside, inside in (("dense_1", hidden, width), ("dense_2", width, hidden)):
            weights[f"{block}.mlp.{name}.linear.weight"] = draw(outside, inside + 1)
            weights[f"{block}.mlp.{name}.linear.bias"] = draw(outside)
    return weights
