"""HexFormer against whole points in float64 (logarithms, transports, exponential maps), the size
that the paper's code has, and what is ours. timm's contract is in test_timm_contract.py."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.cases import each

import hypvision  # noqa: F401 - registers
from hypvision.io.errors import HypvisionError
from hypvision.models.hexformer import BatchTokenNorm, CentroidAttention, from_official

ARGUMENTS = dict(
    img_size=12, patch_size=4, embed_dim=6, depth=2, num_heads=3, hidden_dim=10, num_classes=5
)


def make(**changes):
    torch.manual_seed(0)
    model = timm.create_model("hexformer_tiny", **{**ARGUMENTS, **changes}).eval()
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn_like(value)
    return model


def point(space, k):
    return torch.cat([(k + space.square().sum(-1, keepdim=True)).sqrt(), space], -1)


def inner(x, y):
    return (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True) - x[..., :1] * y[..., :1]


def moved(x, y, v, k):
    """The parallel transport of ``v`` from ``x`` to ``y``."""
    return v + inner(y, v) / (k - inner(x, y)) * (x + y)


def origin(x, k):
    return point(torch.zeros_like(x[..., 1:]), k)


def logarithm(x, y, k):
    towards = y + inner(x, y) / k * x
    size = inner(towards, towards).clamp(min=0).sqrt()
    distance = math.sqrt(k) * torch.acosh((-inner(x, y) / k).clamp(min=1))
    return torch.where(size > 0, distance * towards / size, 0.0)


def exponential(x, v, k):
    size = inner(v, v).clamp(min=0).sqrt() / math.sqrt(k)
    return torch.cosh(size) * x + torch.where(size > 0, torch.sinh(size) / size, 1.0) * v


def centroid(x, k):
    mean = x.mean(-2, keepdim=True)
    return math.sqrt(k) * mean / (-inner(mean, mean)).sqrt()


def linear(layer, x, k):
    """The published layer, from points to the points of each head ``(B, N, H, d + 1)``; for each
    of its parts."""
    out = []
    for whole in torch.cat([layer.time_weight[:, None], layer.weight], 1).chunk(layer.parts):
        y = x @ whole.T
        time = torch.sigmoid(y[..., :1]) * math.exp(2.3) + math.sqrt(k) + 0.5
        parts = layer.activation(y[..., 1:]).unflatten(-1, (layer.heads, -1))
        size = parts.square().sum(-1, keepdim=True)
        out.append(point(parts * ((time[..., None] ** 2 - k) / size).sqrt(), k))
    return out


def norm(layer, x, k):
    mean = centroid(x, k)
    start = origin(mean, k)
    v = moved(mean.expand_as(x), start, logarithm(mean.expand_as(x), x, k), k)
    spread = inner(v, v).clamp(min=0).sqrt().mean(-2, keepdim=True)
    beta = point(layer.beta, k).expand_as(x)
    v = moved(start.expand_as(x), beta, v * layer.gamma / (spread + 1e-5), k)
    return exponential(beta, v, k)


def batch_norm(layer, x, k):
    """The released last norm of class tokens ``(B, n + 1)``: the mean is that of the batch, and
    each vector is divided by its own length."""
    mean = centroid(x, k).expand_as(x)
    start = origin(x, k)
    v = moved(mean, start, logarithm(mean, x, k), k)
    beta = point(layer.beta, k).expand_as(x)
    size = inner(v, v).clamp(min=0).sqrt()
    return exponential(beta, moved(start, beta, v * layer.gamma / (size + 1e-5), k), k)


def attention(layer, x, k):
    q, key, v = (part.transpose(1, 2) for part in linear(layer.qkv, x, k))
    products = inner(q.unsqueeze(-2), key.unsqueeze(-3)).squeeze(-1)
    scores = -(-2 * k - 2 * products) * (v.shape[-1] - 1) ** -0.5 / layer.temperature
    start = origin(v, k)
    shares = scores.softmax(-1)
    mean = exponential(start, shares @ logarithm(start, v, k), k)
    if isinstance(layer, CentroidAttention):
        mean = shares @ v
        mean = math.sqrt(k) * mean / (-inner(mean, mean)).sqrt()
    joined = mean.transpose(1, 2)
    time = (joined[..., 0].square().sum(-1) - (v.shape[1] - 1) * k).sqrt()
    joined = torch.cat([time[..., None], joined[..., 1:].flatten(2)], -1)
    return linear(layer.o, joined, k)[0][:, :, 0, 1:]


def logits(model, images, k):
    stem = model.stem
    patch = model.patch_size
    patches = images.unfold(2, patch, patch).unfold(3, patch, patch)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    whole = torch.cat([stem.conv.time_weight.reshape(-1, 1), stem.conv.weight.flatten(1)], 1)
    y = point(patches, k) @ whole.T
    time = torch.sigmoid(y[..., :1]) * math.exp(2.3) + math.sqrt(k) + 0.5
    space = F.normalize(y[..., 1:], dim=-1) * (time**2 - k).sqrt()
    space = torch.cat([stem.class_token.expand(len(space), -1, -1), space], 1) + stem.pos_embed
    for block in model.stages:
        space = space + attention(block.attn, norm(block.norm1, point(space, k), k), k)
        hidden = linear(block.fc1, norm(block.norm2, point(space, k), k), k)[0][:, :, 0]
        space = space + linear(block.fc2, hidden, k)[0][:, :, 0, 1:]
    points = point(space, k)
    official = isinstance(model.norm, BatchTokenNorm)
    last = (
        batch_norm(model.norm, points[:, 0], k) if official else norm(model.norm, points, k)[:, 0]
    )
    root = math.sqrt(k)
    normals = model.head.weight
    side = torch.cosh(model.head.bias / root) * (last[:, 1:] @ F.normalize(normals, dim=1).T)
    side = side - torch.sinh(model.head.bias / root) * last[:, :1]
    return root * torch.asinh(side / root) * normals.norm(dim=1)


@each(
    "k, options",
    [(1.0, {}), (2.5, {}), (2.5, dict(final_norm="official")), (2.5, dict(aggregation="centroid"))],
)
def test_logits_are_those_of_whole_points(k, options):
    model = make(curvature=1 / k, dtype=torch.float64, **options)
    images = 2 * torch.randn(3, 3, 12, 12, dtype=torch.float64)
    found = model(images)
    wanted = logits(model, images, k)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(found)
    inputs = [value for value in model.parameters() if value.requires_grad]
    gradients = torch.autograd.grad((found * weight).sum(), inputs)
    truth = torch.autograd.grad((wanted * weight).sum(), inputs)
    for one, other in zip(gradients, truth):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    single = make(curvature=1 / k, **options)
    single.load_state_dict(model.state_dict())
    torch.testing.assert_close(single(images.float()).double(), wanted, rtol=1e-3, atol=1e-4)


def test_the_published_size():
    """2.72 M numbers with 100 classes, on images of 32 pixels."""
    with torch.device("meta"):
        model = timm.create_model("hexformer_tiny", img_size=32, patch_size=4, num_classes=100)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # the times of the class token and of 19 norms are not kept
    assert round(count / 1e6, 2) == 2.72
    assert count == 2_723_579 - 20


def official(model, k):
    """The model's weights under the names of the released code, points with their times."""
    kept = model.state_dict()

    def linear(weight, time):
        return torch.cat([time[:, None], weight.flatten(1)], 1)

    stem = kept["stem.conv.weight"].movedim(1, -1)  # by position, then by channel
    out = {
        "encoder.embed.patch_embed.weight.weight": linear(stem, kept["stem.conv.time_weight"]),
        "encoder.embed.patch_embed.scale": torch.tensor(2.3),
        "encoder.embed.cls_token": point(kept["stem.class_token"], k),
        "encoder.embed.pos_embed": kept["stem.pos_embed"],
        "decoder.a": kept["head.bias"],
        "decoder.z": kept["head.weight"],
        "decoder.manifold.k": torch.tensor([k]),
    }
    norms = {"encoder.final_ln": "norm"}
    for i in range(len(model.stages)):
        block = f"encoder.encoder.{i}"
        norms |= {f"{block}.ln{n}": f"stages.{i}.norm{n}" for n in (1, 2)}
        qkv = linear(*(kept[f"stages.{i}.attn.qkv.{part}"] for part in ("weight", "time_weight")))
        for name, part in zip("qkv", qkv.chunk(3)):
            out[f"{block}.mha.{name}.weight.weight"] = part
        for name, own in (("mha.o", "attn.o"), ("mlp.0", "fc1"), ("mlp.1", "fc2")):
            parts = (kept[f"stages.{i}.{own}.{part}"] for part in ("weight", "time_weight"))
            out[f"{block}.{name}.weight.weight"] = linear(*parts)
        out[f"{block}.mha.temperature"] = kept[f"stages.{i}.attn.temperature"]
        out[f"{block}.mha.scale"] = torch.ones(1)
    for name, own in norms.items():
        out[f"{name}.beta"] = point(kept[f"{own}.beta"], k)
        out[f"{name}.gamma"] = kept[f"{own}.gamma"]
    return out


@torch.no_grad()
def test_weights_of_the_released_code_load():
    model = make(curvature=0.5, dtype=torch.float64)
    weights = official(model, 2.0)
    # the published numbers, times included
    own = sum(value.numel() for value in model.parameters() if value.requires_grad)
    constants = ("scale", ".k")
    told = sum(value.numel() for name, value in weights.items() if not name.endswith(constants))
    assert told == own + 1 + 2 * 2 + 1
    again = timm.create_model("hexformer_tiny", **ARGUMENTS, curvature=0.5, dtype=torch.float64)
    again.load_state_dict(weights)
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(again.eval()(images), model(images), rtol=0, atol=0)
    for changed, message in (
        ({"decoder.manifold.k": torch.ones(1)}, "curvature 1 .* 0.5"),
        ({"encoder.adapter": torch.ones(1)}, "encoder.adapter"),
        ({"encoder.encoder.1.mha.k.weight.weight": None}, "lacks .*1.mha.k"),
    ):
        wrong = {name: value for name, value in (weights | changed).items() if value is not None}
        with pytest.raises(HypvisionError, match=message):
            from_official(wrong, model)


@torch.no_grad()
def test_an_image_does_not_depend_on_its_batch():
    model = make()
    images = torch.randn(4, 3, 12, 12)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


@torch.no_grad()
def test_by_the_released_last_norm_it_does():
    """And one image alone is at the mean, so that its logits are those of any other."""
    model = make(final_norm="official", dtype=torch.float64)
    images = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    whole = model(images)
    assert (whole[:2] - model(images[:2])).abs().max() > 1e-3
    assert (whole[0] - whole[1]).abs().max() > 1e-3
    torch.testing.assert_close(model(images[:1]), model(images[1:2]), rtol=0, atol=1e-4)
    make(dtype=torch.float64).load_state_dict(model.state_dict())
    with pytest.raises(HypvisionError, match="final_norm"):
        make(final_norm="batch")
    with pytest.raises(HypvisionError, match="aggregation"):
        make(aggregation="midpoint")


@torch.no_grad()
def test_the_hybrid_head_is_a_linear_layer_of_the_logarithm():
    model = make(classifier="hybrid", curvature=0.5)
    pooled = model.forward_head(model.forward_features(torch.randn(2, 3, 12, 12)), pre_logits=True)
    points = model.manifold.from_space(pooled.double())
    wanted = F.linear(model.manifold.logmap0(points), model.head.weight.double())
    torch.testing.assert_close(model.head(pooled).double(), wanted + model.head.bias.double())
    with pytest.raises(HypvisionError, match="classifier"):
        make(classifier="busemann")
    with pytest.raises(HypvisionError, match="img_size"):
        make(img_size=13)


@torch.no_grad()
def test_positions_fit_another_grid():
    small, large = make(img_size=8), make(img_size=16)
    small.load_state_dict(large.state_dict())
    assert small.stem.pos_embed.shape == (1, 5, 6)
    torch.testing.assert_close(small.stem.pos_embed[:, :1], large.stem.pos_embed[:, :1])
    images = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(small(images), large(images))


@pytest.mark.parametrize("rates", [dict(drop_path_rate=0.999), dict(proj_drop_rate=0.999)])
def test_branches_are_dropped_in_training_alone(rates):
    torch.manual_seed(0)
    model = timm.create_model("hexformer_tiny", img_size=32, **rates)
    plain = timm.create_model("hexformer_tiny", img_size=32)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))
    torch.testing.assert_close(plain.train()(x), plain.eval()(x))
    assert (model.train()(x) - plain(x)).abs().max() > 1e-3


def test_scales_and_shifts_do_not_decay():
    model = timm.create_model("hexformer_tiny", img_size=32)
    kept = model.no_weight_decay()
    assert {name.rpartition(".")[2] for name in kept} >= {"beta", "gamma"}
    names = {name for name, _ in model.named_parameters()}
    assert {name for name in names if name.endswith((".beta", ".gamma"))} <= set(kept)
