"""The layers once more, written down literally: points with time, unfolded patches, logarithms and
transports."""

import math

import torch
import torch.nn.functional as F

from hypvision.geometry import lorentz, poincare


def points(space, c):
    """Space parts ``(..., n)`` with their time in front."""
    time = (space.pow(2).sum(-1, keepdim=True) + 1 / c).sqrt()
    return torch.cat([time, space], -1)


def lorentz_linear(layer, x, c):
    full = torch.cat([layer.time_weight[:, None], layer.weight], 1)
    y = F.linear(points(x, c), full, layer.bias)
    if layer.normalize == "time":
        gate = F.linear(points(x, c), layer.norm_weight[None], layer.norm_bias)
        time = torch.sigmoid(gate) * layer.scale.exp() + 1 / c**0.5 + layer.margin
        y = y * ((time**2 - 1 / c) / y.pow(2).sum(-1, keepdim=True)).sqrt()
    elif layer.normalize:
        gate = F.linear(points(x, c), layer.norm_weight[None], layer.norm_bias)
        y = torch.sigmoid(gate) * layer.scale.exp() * y / y.norm(dim=-1, keepdim=True)
    if layer.manifold_out is not None:
        y = y * (c / layer.manifold_out.c) ** 0.5
    return y


def fgg_linear(layer, x, c):
    rows = []
    normals = layer.weight
    if layer.gain is not None:
        normals = (
            normals / normals.norm(dim=1, keepdim=True) * torch.log1p(layer.gain.exp())[:, None]
        )
    for u, a in zip(normals, layer.offset):
        angle = c**0.5 * a / u.norm()
        rows.append(torch.cat([-(u.norm() * torch.sinh(angle)).reshape(1), u * torch.cosh(angle)]))
    return layer.activation(points(x, c) @ torch.stack(rows).t())


def plfc(layer, x, c):
    """Distances from hyperplanes as coordinates, moved by the boost of ``exp_0(b)`` from the
    right."""
    distance = lorentz_mlr(layer, x.flatten(0, -2), c).unflatten(0, x.shape[:-1])
    space = torch.sinh(c**0.5 * distance) / c**0.5
    return boost(space, exponential(layer.bias, c).expand_as(space), c)


def fgg_mlr(layer, x, c):
    return torch.asinh(c**0.5 * fgg_linear(layer, x, c)) / c**0.5


def lorentz_conv2d(layer, x, c):
    """Unfold, pad with origins, concatenate the points of a patch, apply the Lorentz linear
    layer."""
    batch, channels, height, width = x.shape
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
    )
    maps = points(x.permute(0, 2, 3, 1), c)
    padded = torch.zeros(batch, height + 2 * ph, width + 2 * pw, channels + 1, dtype=x.dtype)
    padded[..., 0] = 1 / c**0.5
    padded[:, ph : ph + height, pw : pw + width] = maps
    rows = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    columns = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    weight = torch.cat([layer.time_weight[:, None], layer.weight.permute(0, 2, 3, 1).flatten(1)], 1)
    out = torch.zeros(batch, layer.out_channels, rows, columns, dtype=x.dtype)
    for i in range(rows):
        for j in range(columns):
            patch = padded[
                :, i * sh : i * sh + dh * kh : dh, j * sw : j * sw + dw * kw : dw
            ].flatten(1, 2)
            time = (patch[..., :1].pow(2).sum(1) - (kh * kw - 1) / c).sqrt()
            joined = torch.cat([time, patch[..., 1:].flatten(1)], 1)
            out[:, :, i, j] = F.linear(joined, weight, layer.bias)
    return out


def lorentz_conv1d(layer, x, c):
    """Every window as one point, its positions one after the other."""
    (size,), (stride,), (padding,), (dilation,) = (
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
    )
    padded = F.pad(x, (padding, padding))
    out = []
    for start in range(0, padded.shape[2] - dilation * (size - 1), stride):
        patch = points(
            padded[:, :, start : start + dilation * (size - 1) + 1 : dilation].transpose(1, 2), c
        )
        time = (patch[..., :1].pow(2).sum(1) - (size - 1) / c).sqrt()
        weight = torch.cat(
            [layer.time_weight[:, None], layer.weight.permute(0, 2, 1).flatten(1)], 1
        )
        out.append(F.linear(torch.cat([time, patch[..., 1:].flatten(1)], 1), weight, layer.bias))
    return torch.stack(out, 2)


def batch_norm(layer, x, c, mean=None, var=None):
    """Tokens ``(B, N, C)``: logarithm at the mean, transport to the origin, scale, transport to
    beta, exponential."""
    x = points(x, c)

    def centroid(p):
        mean = p.mean(-2)
        return mean / (c**0.5 * (-lorentz.minkowski_inner(mean, mean)).sqrt())

    if mean is None:
        mean = centroid(x.flatten(0, -2)) if layer.joint else centroid(centroid(x))
    mean = mean.expand_as(x)
    origin = torch.zeros_like(x)
    origin[..., 0] = 1 / c**0.5

    def transport(a, b, v):
        return v + c * lorentz.minkowski_inner(b, v) / (1 - c * lorentz.minkowski_inner(a, b)) * (
            a + b
        )

    inner = -c * lorentz.minkowski_inner(mean, x)
    v = torch.acosh(inner) / (inner.pow(2) - 1).sqrt() * (x - inner * mean)
    v = transport(mean, origin, v)[..., 1:] / c**0.5 * c**0.5
    size = v.norm(dim=-1)
    if layer.gyro:
        var = size.pow(2).mean() if var is None else var
        v = v * layer.gamma.exp() / (var + layer.eps).sqrt()
    else:
        var = size.mean() if var is None else var
        v = v * layer.gamma / (var + layer.eps)
    if layer.slope is not None:
        limit = math.acosh(2000 * float(c)) / float(c) ** 0.5
        size = v.norm(dim=-1, keepdim=True)
        v = v / size * limit * torch.tanh(math.atanh(0.99) * size / (layer.slope * limit))
    beta = layer.beta.expand_as(x)
    v = transport(origin, beta, torch.cat([torch.zeros_like(v[..., :1]), v], -1))
    size = lorentz.minkowski_inner(v, v).sqrt() * c**0.5
    return (torch.cosh(size) * beta + torch.sinh(size) / size * v)[..., 1:]


def lorentz_mlr(layer, x, c):
    x = points(x, c)
    root = c**0.5
    a, z = layer.a[:, None], layer.z
    alpha = (
        torch.cosh(root * a) * (z @ x[..., 1:].t())
        - torch.sinh(root * a) * z.norm(dim=-1, keepdim=True) * x[:, 0]
    )
    beta = z.norm(dim=-1, keepdim=True)
    return (torch.sign(alpha) * beta / root * torch.asinh(root * alpha.abs() / beta)).t()


def busemann_mlr(layer, x, c):
    """In the coordinates of the ball: log(|v - sqrt(c) x|^2 / (1 - c |x|^2)) / sqrt(c)."""
    if type(layer.manifold).__name__ == "Lorentz":
        x = x / (1 + (1 + c * x.pow(2).sum(-1, keepdim=True)).sqrt())
    apart = layer.weight_v / layer.weight_v.norm(dim=-1, keepdim=True) - c**0.5 * x.unsqueeze(-2)
    inside = 1 - c * x.pow(2).sum(-1, keepdim=True)
    towards = torch.log(apart.pow(2).sum(-1) / inside) / c**0.5
    return layer.bias - layer.weight_g.exp() * towards


def busemann_linear(layer, x, c):
    """The sum of the ball's points ``exp_0(b)`` and ``y``."""
    w = torch.sinh(c**0.5 * layer.activation(busemann_mlr(layer, x, c))) / c**0.5
    y = w / (1 + (1 + c * w.pow(2).sum(-1, keepdim=True)).sqrt())
    flat = type(layer.manifold).__name__ == "Lorentz"
    moved = layer.shift / 2 if flat else layer.shift
    size = c**0.5 * moved.norm()
    b = torch.tanh(size) * moved / size
    dot = (b * y).sum(-1, keepdim=True)
    bb = b.pow(2).sum()
    yy = y.pow(2).sum(-1, keepdim=True)
    z = ((1 + 2 * c * dot + c * yy) * b + (1 - c * bb) * y) / (1 + 2 * c * dot + c * c * bb * yy)
    return 2 * z / (1 - c * z.pow(2).sum(-1, keepdim=True)) if flat else z


def hypformer_lift(layer, x, c):
    """The space part of ``cosh(r) o + sinh(r) / r (1, x)``."""
    square = c * (x.pow(2).sum(-1, keepdim=True) - 1)
    r = square.clamp(min=1e-30).sqrt()
    return torch.where(square > 0, torch.sinh(r) / r, 1.0) * x


def prototype_head(layer, x, c):
    inner = points(x, c) * points(layer.points, c)[:, None]
    inner = inner[..., 1:].sum(-1) - inner[..., 0]
    apart = (-2 / c - 2 * inner.t() + layer.bias).clamp(min=0)
    logits = {"negative": -apart, "inverse": 1 / (1 + apart), "log": -torch.log(1 + apart)}
    return layer.scale * logits[layer.logit]


def ganea_mlr(layer, x, c):
    out = []
    for a, p in zip(layer.a, layer.p):
        p = poincare.expmap0(p, c)
        factor = 2 / (1 - c * p.pow(2).sum())
        a = a * (1 - c * p.pow(2).sum())
        w = poincare.mobius_add(-p.expand_as(x), x, c)
        inner = 2 * c**0.5 * (w @ a) / (a.norm() * (1 - c * w.pow(2).sum(-1)))
        out.append(factor * a.norm() / c**0.5 * torch.asinh(inner))
    return torch.stack(out, -1)


def poincare_mlr(layer, x, c):
    root, factor = c**0.5, 2 / (1 - c * x.pow(2).sum(-1, keepdim=True))
    v = F.normalize(layer.v, dim=-1)
    angle = 2 * root * layer.r
    inner = factor * root * (x @ v.t()) * torch.cosh(angle) - (factor - 1) * torch.sinh(angle)
    return 2 * layer.g / root * torch.asinh(inner)


def poincare_fc(layer, x, c):
    root, factor = c**0.5, 2 / (1 - c * x.pow(2).sum(-1, keepdim=True))
    length = layer.weight.norm(dim=-1)
    v = layer.weight / length[:, None]
    angle = 2 * root * layer.bias
    inner = factor * root * (x @ v.t()) * torch.cosh(angle) - (factor - 1) * torch.sinh(angle)
    w = torch.sinh(2 * length * torch.asinh(inner)) / root
    return w / (1 + (1 + c * w.pow(2).sum(-1, keepdim=True)).sqrt())


def poincare_linear(layer, x, c):
    mx = x @ layer.weight.t()
    length, size = x.norm(dim=-1, keepdim=True), mx.norm(dim=-1, keepdim=True)
    y = torch.tanh(size / length * torch.atanh(c**0.5 * length)) * mx / size / c**0.5
    b = torch.tanh(c**0.5 * layer.bias.norm()) * layer.bias / (c**0.5 * layer.bias.norm())
    dot, y2, b2 = c * (y @ b)[..., None], c * y.pow(2).sum(-1, keepdim=True), c * b.pow(2).sum()
    return ((1 + 2 * dot + b2) * y + (1 - y2) * b) / (1 + 2 * dot + y2 * b2)


def attention(layer, x, c):
    def heads(linear):
        return points(
            lorentz_linear(linear, x, c).unflatten(-1, (layer.num_heads, -1)), c
        ).transpose(1, 2)

    q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)
    score = 2 / c + 2 * lorentz.minkowski_inner(q[:, :, :, None], k[:, :, None]).squeeze(-1)
    weights = (score / layer.scale).softmax(-1)
    mean = weights @ v
    mean = mean / (c**0.5 * (-lorentz.minkowski_inner(mean, mean)).sqrt())
    if layer.join == "centroid":
        mean = mean.mean(1)
        return (mean / (c**0.5 * (-lorentz.minkowski_inner(mean, mean)).sqrt()))[..., 1:]
    if layer.join == "points":
        return F.linear(mean.transpose(1, 2).flatten(2), layer.out.weight, layer.out.bias)
    return lorentz_linear(layer.out, mean[..., 1:].transpose(1, 2).flatten(2), c)


def linear_attention(layer, x, c):
    def heads(linear):
        return lorentz_linear(linear, x, c).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)

    def focus(z):
        z = (z.relu() + 1e-6) / (layer.scale.abs() + 1e-6)
        return z**layer.power * (
            z.norm(dim=-1, keepdim=True) / (z**layer.power).norm(dim=-1, keepdim=True)
        )

    q, k, v = focus(heads(layer.query)), focus(heads(layer.key)), heads(layer.value)
    weights = q @ k.transpose(2, 3)
    mixed = weights @ v / (weights.sum(-1, keepdim=True) + 1e-6) + F.linear(
        v, layer.local.weight, layer.local.bias
    )
    return lorentz_linear(layer.out, mixed.transpose(1, 2).flatten(2), c)


def minkowski_norm(m):
    return (m[..., :1].pow(2) - m[..., 1:].pow(2).sum(-1, keepdim=True)).sqrt()


def boost(x, y, c):
    """The space part of ``y`` after the boost that takes the origin to ``x``, by its matrix."""
    a, b = points(x, c) * c**0.5, points(y, c)
    lower = torch.eye(x.shape[-1], dtype=x.dtype) + a[..., 1:, None] * a[..., None, 1:] / (
        1 + a[..., :1, None]
    )
    matrix = torch.cat([a[..., None, :], torch.cat([a[..., 1:, None], lower], -1)], -2)
    return (matrix @ b[..., None])[..., 1:, 0]


def residual(layer, x, y, c):
    a, b = points(x, c), points(y, c)
    if layer.mode == "space":
        out = a + b
    elif layer.mode == "average":
        m = a + layer.weight * b
        out = m / (c**0.5 * minkowski_norm(m))
        learned = layer.scale is None and layer.log_scale is not None
        scale = layer.log_scale.exp() if learned else layer.scale
        if scale is not None:
            out = points(scale * out[..., 1:], c)
    else:
        out = points(boost(x, y, c), c)
    return out[..., 1:] if layer.slope is None else rescaled(out[..., 1:], c, layer.slope, c)


def largest(c):
    """The maximum distance in float32."""
    c = float(c.detach()) if isinstance(c, torch.Tensor) else float(c)
    return math.acosh(2000 * c) / c**0.5


def squashed(v, c, slope):
    """Vectors ``(..., n)`` with lengths of at most the maximum distance."""
    limit, size = largest(c), v.norm(dim=-1, keepdim=True)
    return v / size * limit * torch.tanh(math.atanh(0.99) * size / (slope * limit))


def logarithm(space, c):
    """Tangent vectors at the origin, by the distance from it."""
    distance = torch.acosh(c**0.5 * points(space, c)[..., :1]) / c**0.5
    return distance * space / space.norm(dim=-1, keepdim=True)


def exponential(v, c):
    size = c**0.5 * v.norm(dim=-1, keepdim=True)
    return torch.sinh(size) / size * v


def rescaled(space, c, slope, target):
    return exponential(squashed(logarithm(space, c), target, slope), target)


def to_lorentz(layer, x, c):
    if layer.slope is not None:
        return squashed(x, c, layer.slope)
    size = x.norm(dim=-1, keepdim=True)
    return exponential(torch.where(size > layer.clip, x / size * layer.clip, x), c)


def change_manifold(layer, x, c):
    v = logarithm(x, c)
    return exponential(
        v if layer.slope is None else squashed(v, layer.target.c, layer.slope), layer.target.c
    )


def average_pool(layer, x, c):
    """Centroids over windows of a map, origins around it."""
    size, stride, pad = layer.kernel_size[0], layer.stride[0], layer.padding[0]
    windows = F.unfold(x, size, 1, pad, stride).unflatten(1, (x.shape[1], -1)).permute(0, 3, 2, 1)
    p = points(windows, c).mean(2)
    out = (p / (c**0.5 * minkowski_norm(p)))[..., 1:]
    return out.transpose(1, 2).unflatten(2, ((x.shape[2] + 2 * pad - size) // stride + 1, -1))


def embedding(layer, index, c):
    return F.one_hot(index, layer.num_embeddings).to(layer.weight.dtype) @ layer.weight


def on_tangent(layer, x, c):
    """Points of the ball: logarithm and exponential by tanh and its inverse."""
    size = x.norm(dim=-1, keepdim=True)
    v = layer.module(torch.atanh(c**0.5 * size) / (c**0.5 * size) * x)
    size = v.norm(dim=-1, keepdim=True)
    return torch.tanh(c**0.5 * size) / (c**0.5 * size) * v


def layer_norm(layer, x, c):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def rms_norm(layer, x, c):
    return x / (x.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight


def poincare_conv2d(layer, x, c):
    """Beta-concatenate the points of every patch, then the fully connected layer."""
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    n, root = x.shape[1], c**0.5

    def beta(size):
        return math.exp(math.lgamma(size / 2) + math.lgamma(0.5) - math.lgamma((size + 1) / 2))

    size = x.norm(dim=1, keepdim=True)
    tangent = torch.atanh(root * size) / (root * size) * x * beta(n * kh * kw) / beta(n)
    columns = F.unfold(tangent, (kh, kw), 1, (ph, pw), (sh, sw)).transpose(1, 2)
    size = columns.norm(dim=-1, keepdim=True)
    patches = torch.tanh(root * size) / (root * size) * columns

    class Full:
        weight, bias = layer.weight.flatten(1), layer.bias

    out = poincare_fc(Full, patches, c).transpose(1, 2)
    return out.unflatten(2, ((x.shape[2] + 2 * ph - kh) // sh + 1, -1))


def poincare_batch_norm(layer, x, c):
    """Rows of points: logarithm at the midpoint, transport to the bias by a gyration,
    exponential."""
    root = c**0.5

    def add(a, b):
        ab, aa, bb = (
            c * (a * b).sum(-1, keepdim=True),
            c * a.pow(2).sum(-1, keepdim=True),
            c * b.pow(2).sum(-1, True),
        )
        return ((1 + 2 * ab + bb) * a + (1 - aa) * b) / (1 + 2 * ab + aa * bb)

    def factor(a):
        return 2 / (1 - c * a.pow(2).sum(-1, keepdim=True))

    rows, weight = x.reshape(-1, x.shape[-1]), factor(x.reshape(-1, x.shape[-1]))
    klein = (weight * rows).sum(0) / (weight - 1).sum(0)
    mean = (klein / (1 + (1 - c * klein.pow(2).sum()).sqrt())).expand_as(rows)
    moved = add(-mean, rows)
    distance = 2 / root * torch.atanh(root * moved.norm(dim=-1, keepdim=True))
    v = distance / factor(mean) * moved / moved.norm(dim=-1, keepdim=True)
    size = layer.bias.norm()
    beta = (torch.tanh(root * size) * layer.bias / (root * size)).expand_as(rows)
    # gyr[beta, -mean] v = -(beta + -mean) + (beta + (-mean + v)), with v taken inside the ball: it
    # is linear
    small = 1e-3 * v / v.norm(dim=-1, keepdim=True)
    turned = (
        add(-add(beta, -mean), add(beta, add(-mean, small))) * 1e3 * v.norm(dim=-1, keepdim=True)
    )
    v = (
        turned
        * factor(mean)
        / factor(beta)
        * (layer.weight / (distance.pow(2).mean() + layer.eps)).sqrt()
    )
    size = v.norm(dim=-1, keepdim=True)
    return add(beta, torch.tanh(root * factor(beta) * size / 2) * v / (root * size)).reshape(
        x.shape
    )


def global_pool(x, c):
    p = points(x.flatten(2).transpose(1, 2), c).mean(1)
    return (p / (c**0.5 * (-lorentz.minkowski_inner(p, p)).sqrt()))[..., 1:]


def efficient(layer, x, c, patches):
    """The efficient layer on ``patches`` ``(..., fan_in)`` that were unfolded from ``x``."""
    weight = layer.weight.flatten(1)
    if layer.expanding:
        full = torch.zeros(layer.fan_out, layer.fan_out, dtype=x.dtype)
        full[:, : layer.fan_in] = torch.tril(weight)
        skew, eye = full - full.t(), torch.eye(layer.fan_out, dtype=x.dtype)
        weight = (torch.linalg.inv(eye - skew / 2) @ (eye + skew / 2))[:, : layer.fan_in]
    y = patches @ weight.t()
    if not layer.expanding and layer.norm_match == "patch":
        y = y * patches.norm(dim=-1, keepdim=True) / y.norm(dim=-1, keepdim=True)
    if layer.boost == "axis":
        time, alpha = (y.pow(2).sum(-1) + 1 / c).sqrt(), layer.boost_weight[0]
        y = torch.cat(
            [y[..., :-1], (torch.sinh(alpha) * time + torch.cosh(alpha) * y[..., -1])[..., None]],
            -1,
        )
    elif layer.boost == "full":
        v = layer.boost_weight
        speed = torch.sigmoid(v.norm()) * v / v.norm()
        gamma = 1 / (1 - speed.pow(2).sum()).sqrt()
        space = (
            torch.eye(len(v), dtype=x.dtype)
            + (gamma - 1) * torch.outer(speed, speed) / speed.pow(2).sum()
        )
        y = points(y, c) @ torch.cat([(-gamma * speed)[None], space], 0)
    elif layer.boost == "scale":
        y = lorentz.expmap0(lorentz.logmap0(points(y, c), c) * layer.boost_weight, c)[..., 1:]
    return (
        y if layer.slope is None else lorentz.rescale(points(y, c), c, slope=layer.slope)[..., 1:]
    )
