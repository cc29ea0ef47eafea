"""One suite over all layers: equal to a literal float64 reference, finite, and good citizens of PyTorch."""

import copy
import io

import layer_references as reference
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hypvision import nn as hnn
from hypvision.geometry import Lorentz, PoincareBall, named_manifold_parameters

C = 0.7


def maps(batch=3, channels=6, side=7):
    return torch.randn(batch, channels, side, side)


def tokens(batch=3, length=5, dim=6):
    return torch.randn(batch, length, dim)


def ball_points(batch=5, dim=6):
    return PoincareBall(C).from_tangent0(torch.randn(batch, dim))


def conv_patches(layer, x):
    columns = F.unfold(x, layer.kernel_size, 1, layer.padding, layer.stride)
    return columns.transpose(1, 2)


def run_efficient_conv(layer, x, c):
    out = reference.efficient(layer, x, c, conv_patches(layer, x))
    side = (x.shape[2] + 2 * layer.padding[0] - layer.kernel_size[0]) // layer.stride[0] + 1
    return out.transpose(1, 2).unflatten(2, (side, -1))


def run_transposed(layer, x, c):
    rows = torch.zeros(*x.shape[:2], (x.shape[2] - 1) * 2 + 1, (x.shape[3] - 1) * 2 + 1, dtype=x.dtype)
    rows[..., ::2, ::2] = x
    return F.pad(reference.lorentz_conv2d(layer.conv, rows, c), (0, 1, 0, 1))


def channels_last(function):
    def apply(layer, x, c):
        return function(layer, x.flatten(2).transpose(1, 2), c).transpose(1, 2).reshape(x.shape)

    return apply


def pair(layer, x, c):
    """A residual connection of x with a function of itself."""
    a, b = reference.points(x, c), reference.points(x.flip(0), c)
    if layer.mode == "space":
        return (a + b)[..., 1:]
    m = a + layer.weight * b
    inner = -(m[..., :1] ** 2) + m[..., 1:].pow(2).sum(-1, keepdim=True)
    return (m / (c**0.5 * inner.abs().sqrt()))[..., 1:]


class Residual(hnn.LorentzResidual):
    def forward(self, x):
        return super().forward(x, x.flip(0))


M, B = Lorentz, PoincareBall
# name: (layer from a manifold, manifold, input, reference)
LAYERS = {
    "linear": (lambda m: hnn.LorentzLinear(6, 9, m), M, tokens, reference.lorentz_linear),
    "linear_xavier": (lambda m: hnn.LorentzLinear(6, 9, m, init="xavier"), M, tokens, reference.lorentz_linear),
    "linear_normalized": (lambda m: hnn.LorentzLinear(6, 9, m, normalize=True), M, tokens, reference.lorentz_linear),
    "fgg": (lambda m: hnn.FGGLinear(6, 9, m), M, tokens, reference.fgg_linear),
    "fgg_kaiming": (lambda m: hnn.FGGLinear(6, 4, m, init="kaiming"), M, tokens, reference.fgg_linear),
    "conv2d": (lambda m: hnn.LorentzConv2d(6, 8, 3, m, padding=1), M, maps, reference.lorentz_conv2d),
    "conv2d_strided": (lambda m: hnn.LorentzConv2d(6, 8, 3, m, stride=2), M, maps, reference.lorentz_conv2d),
    "conv2d_dilated": (
        lambda m: hnn.LorentzConv2d(6, 8, (3, 2), m, 1, (2, 1), (2, 1)), M, maps, reference.lorentz_conv2d,
    ),
    "conv2d_shortcut": (lambda m: hnn.LorentzConv2d(6, 8, 1, m, stride=2), M, maps, reference.lorentz_conv2d),
    "conv_transpose": (
        lambda m: hnn.LorentzConvTranspose2d(6, 8, 3, m, stride=2, padding=1, output_padding=1), M, maps,
        run_transposed,
    ),
    "efficient_conv": (lambda m: hnn.EfficientLorentzConv2d(6, 8, 3, m, padding=1), M, maps, run_efficient_conv),
    "efficient_conv_cayley": (lambda m: hnn.EfficientLorentzConv2d(6, 16, 1, m, stride=2), M, maps, run_efficient_conv),
    "efficient_linear": (
        lambda m: hnn.EfficientLorentzLinear(6, 4, m, boost="full"), M, tokens,
        lambda layer, x, c: reference.efficient(layer, x, c, x),
    ),
    "efficient_linear_cayley": (
        lambda m: hnn.EfficientLorentzLinear(6, 8, m, boost="scale", slope=3.0), M, tokens,
        lambda layer, x, c: reference.efficient(layer, x, c, x),
    ),
    "batch_norm2d": (lambda m: hnn.LorentzBatchNorm2d(6, m), M, maps, channels_last(reference.batch_norm)),
    "batch_norm2d_rescaled": (
        lambda m: hnn.LorentzBatchNorm2d(6, m, slope=2.0), M, maps, channels_last(reference.batch_norm),
    ),
    "batch_norm1d": (lambda m: hnn.LorentzBatchNorm1d(6, m), M, tokens, reference.batch_norm),
    "gyro_batch_norm2d": (lambda m: hnn.GyroLorentzBatchNorm2d(6, m), M, maps, channels_last(reference.batch_norm)),
    "gyro_batch_norm1d": (lambda m: hnn.GyroLorentzBatchNorm1d(6, m), M, tokens, reference.batch_norm),
    "global_pool": (lambda m: hnn.LorentzGlobalAvgPool2d(m), M, maps, lambda layer, x, c: reference.global_pool(x, c)),
    "residual_space": (lambda m: Residual(m), M, tokens, pair),
    "residual_average": (lambda m: Residual(m, "average"), M, tokens, pair),
    "mlr": (
        lambda m: hnn.LorentzMLR(6, 9, m), M, lambda: torch.randn(5, 6), reference.lorentz_mlr,
    ),
    "attention": (lambda m: hnn.LorentzAttention(6, 2, m), M, tokens, reference.attention),
    "ganea_mlr": (lambda m: hnn.GaneaMLR(6, 9, m), B, ball_points, reference.ganea_mlr),
    "poincare_mlr": (lambda m: hnn.PoincareMLR(6, 9, m), B, ball_points, reference.poincare_mlr),
    "poincare_fc": (lambda m: hnn.PoincareFullyConnected(6, 9, m), B, ball_points, reference.poincare_fc),
    "poincare_linear": (lambda m: hnn.PoincareLinear(6, 9, m), B, ball_points, reference.poincare_linear),
}  # fmt: skip


def build(name, learnable=False):
    """The layer, its parameters shaken so that none is at a special value, an input and the reference."""
    torch.manual_seed(len(name))
    make, kind, inputs, literal = LAYERS[name]
    layer = make(kind(C, learnable=learnable))
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if "log_c" not in key:
                parameter += 0.1 * torch.randn_like(parameter)
        for _, parameter, manifold in named_manifold_parameters(layer):
            parameter.copy_(manifold.projx(parameter))
    return layer, inputs().requires_grad_(), literal


every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
def test_equals_the_literal_form(name):
    layer, x, literal = build(name)
    layer, x = layer.double(), x.detach().double().requires_grad_()
    for _, parameter, manifold in named_manifold_parameters(layer):
        with torch.no_grad():
            parameter.copy_(manifold.projx(parameter))
    out, expected = layer(x), literal(layer, x, C)
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-9)
    weight = torch.randn_like(out)
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
    found = torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True)
    truth = torch.autograd.grad((expected * weight).sum(), inputs, allow_unused=True)
    for one, other in zip(found, truth):
        if one is None or other is None:
            assert one is other
            continue
        if hasattr(layer, "beta") and one.shape == layer.beta.shape:
            # the literal form reads the time of beta as well: compare what moves along the hyperboloid
            time, space = layer.beta[:1], layer.beta[1:]
            one, other = (g[1:] + g[:1] * space / time for g in (one, other))
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * other.abs().max().item() + 1e-12)


# the limit of the rescaling follows the curvature without a gradient
@pytest.mark.parametrize("name", [n for n in LAYERS if "rescaled" not in n and "efficient" not in n])
def test_curvature_is_learned(name):
    """The gradient with respect to log c against a central difference."""
    layer, x, _ = build(name, learnable=True)
    layer, x = layer.double(), x.double()
    log_c = layer.get_parameter(next(key for key, _ in layer.named_parameters() if key.endswith("log_c")))
    weight = torch.randn_like(layer(x))

    def value(shift):
        with torch.no_grad():
            log_c.add_(shift)
            out = (layer(x) * weight).sum()
            log_c.sub_(shift)
        return out

    (found,) = torch.autograd.grad((layer(x) * weight).sum(), log_c, materialize_grads=True)
    expected = (value(1e-5) - value(-1e-5)) / 2e-5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@every_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_close(name, dtype):
    layer, x, _ = build(name)
    expected = layer(x)
    with torch.autocast("cpu", dtype):
        found = layer(x)
    found.float().sum().backward()
    unit = torch.finfo(dtype).eps
    assert (found.float() - expected).abs().max() <= 16 * unit * max(1, expected.abs().max().item())
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@every_layer
def test_compiles_in_one_graph(name):
    layer, x, _ = build(name)
    expected, weight = layer(x), None
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    truth = [None if p.grad is None else p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    out = fast(x)
    (out * weight).sum().backward()
    torch.testing.assert_close(out, expected, rtol=2e-4, atol=2e-4)
    for p, other in zip(layer.parameters(), truth):
        if other is not None:
            torch.testing.assert_close(p.grad, other, rtol=2e-3, atol=2e-3 * other.abs().max().item() + 1e-6)


@every_layer
def test_state_dict_and_copies(name):
    layer, x, _ = build(name, learnable=True)
    layer(x)  # running statistics
    layer.eval()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    torch.manual_seed(99)
    other = LAYERS[name][0](LAYERS[name][1](1.3, learnable=True)).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(x), layer(x))
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), layer(x))
    assert {type(p) for p in twin.parameters()} == {type(p) for p in layer.parameters()}


@pytest.mark.parametrize("kind", [hnn.LorentzBatchNorm2d, hnn.GyroLorentzBatchNorm2d])
def test_running_statistics_follow(kind):
    """After many batches of one distribution, evaluation does what training does."""
    torch.manual_seed(0)
    layer, x = kind(6, Lorentz(C)), 0.3 * torch.randn(16, 6, 5, 5) + 0.2
    for _ in range(100):
        expected = layer(x)
    layer.eval()
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [hnn.LorentzBatchNorm2d, hnn.GyroLorentzBatchNorm2d])
def test_batch_norm_centres(kind):
    """With beta at the origin the centroid of the result is the origin, and its mean radius is gamma."""
    manifold = Lorentz(C)
    layer = kind(6, manifold).double()
    out = layer(torch.randn(1, 6, 9, 9, dtype=torch.float64) + 1)
    points = manifold.from_space(out.flatten(2).squeeze(0).t())
    radius = manifold.dist0(points)
    if kind is hnn.LorentzBatchNorm2d:
        torch.testing.assert_close(radius.mean().item(), 1.0, rtol=1e-4, atol=0)
    else:
        torch.testing.assert_close(radius.square().mean().item(), 1.0, rtol=1e-4, atol=0)
    spread = manifold.dist0(manifold.centroid(points))
    assert spread < 0.2  # scaling the radii moves the centroid a little


@pytest.mark.parametrize("mode", ["space", "average", "boost"])
def test_residual_modes_are_finite_at_the_origin(mode):
    layer = hnn.LorentzResidual(Lorentz(C), mode, slope=2.0, dim=1)
    x = torch.zeros(2, 6, 3, 3, requires_grad=True)
    layer(x, x * 2).sum().backward()
    assert x.grad.isfinite().all()


def test_boost_residual_is_the_gyro_sum():
    manifold = Lorentz(C)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    out = hnn.LorentzResidual(manifold, "boost")(x, y)
    expected = manifold.expmap(*(lambda p: (p, manifold.transp0(p, manifold.logmap0(manifold.from_space(y)))))(
        manifold.from_space(x)
    ))  # fmt: skip
    torch.testing.assert_close(manifold.from_space(out), expected, rtol=1e-4, atol=1e-4)


def test_average_pool_is_the_centroid_of_windows():
    manifold = Lorentz(C)
    x = torch.randn(2, 6, 4, 4)
    out = hnn.LorentzAvgPool2d(2, manifold)(x)
    window = x[:, :, :2, 2:].flatten(2).transpose(1, 2)
    expected = manifold.centroid(manifold.from_space(window))[..., 1:]
    torch.testing.assert_close(out[:, :, 0, 1], expected, rtol=1e-5, atol=1e-6)
    padded = hnn.LorentzAvgPool2d(3, manifold, 1, 1)(x)
    corner = torch.cat([torch.zeros(2, 5, 6), x[:, :, :2, :2].flatten(2).transpose(1, 2)], 1)
    expected = manifold.centroid(manifold.from_space(corner))[..., 1:]
    torch.testing.assert_close(padded[:, :, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_conv1d_is_conv2d_of_one_row():
    manifold = Lorentz(C)
    one, two = (
        hnn.LorentzConv1d(6, 8, 3, manifold, padding=1),
        hnn.LorentzConv2d(6, 8, (1, 3), manifold, padding=(0, 1)),
    )
    two.load_state_dict({k: v.unsqueeze(2) if k == "weight" else v for k, v in one.state_dict().items()})
    x = torch.randn(2, 6, 9)
    torch.testing.assert_close(one(x), two(x.unsqueeze(2)).squeeze(2))


def test_cayley_columns_are_orthonormal():
    for fan_in, fan_out in ((5, 7), (3, 40)):
        layer = hnn.EfficientLorentzLinear(fan_in, fan_out, Lorentz())
        matrix = layer.matrix()
        torch.testing.assert_close(matrix.t() @ matrix, torch.eye(fan_in), rtol=1e-5, atol=1e-5)


def test_sum_norm_matching():
    layer = hnn.EfficientLorentzConv2d(2, 3, 3, Lorentz(), norm_match="sum", boost="none", slope=None)
    x = torch.randn(1, 2, 3, 3)
    torch.testing.assert_close(layer(x).norm(dim=1).squeeze(), x.norm(dim=1).sum())


@pytest.mark.parametrize("manifold", [Lorentz(C), PoincareBall(C)])
def test_embedding(manifold):
    table = hnn.HyperbolicEmbedding(10, 4, manifold, padding_idx=3)
    manifold.check_point(table.weight)
    torch.testing.assert_close(manifold.dist0(table.weight)[3].item(), 0.0, rtol=0, atol=1e-6)
    assert 0.01 < manifold.dist0(table.weight).median() < 0.3
    assert table(torch.tensor([[1, 2], [3, 4]])).shape == (2, 2, 4 + manifold.extra)
    assert [name for name, _, _ in named_manifold_parameters(table)] == ["weight"]


def test_patch_embed_takes_patches():
    manifold = Lorentz(C)
    layer = hnn.LorentzPatchEmbed(3, 8, 4, manifold)
    x = torch.randn(2, 3, 10, 8)
    out = layer(x)
    assert out.shape == (2, 4, 8)
    expected = reference.lorentz_conv2d(layer.proj, x[:, :, 4:8, :4], C)
    torch.testing.assert_close(out[:, 2], expected.flatten(1), rtol=1e-4, atol=1e-5)


def test_modules_on_space_and_tangent():
    manifold = Lorentz(C)
    x = manifold.random(5, 4)
    out = hnn.OnSpace(nn.ReLU(), manifold)(x)
    manifold.check_point(out)
    torch.testing.assert_close(out[:, 1:], x[:, 1:].relu())
    out = hnn.OnTangent(nn.Linear(4, 3, bias=False), manifold)(x)
    manifold.check_point(out)
    ball = PoincareBall(C)
    y = ball.random(5, 4)
    torch.testing.assert_close(
        ball.logmap0(hnn.OnTangent(nn.Tanh(), ball)(y)), ball.logmap0(y).tanh(), atol=1e-6, rtol=1e-5
    )


def deep(kind, depth=50):
    """A network of 50 blocks of one sort, on tokens or maps of 16 dimensions."""
    manifold = Lorentz(1.0)
    blocks = []
    for _ in range(depth):
        if kind == "conv":
            blocks += [
                hnn.LorentzConv2d(16, 16, 3, manifold, padding=1),
                hnn.LorentzBatchNorm2d(16, manifold),
                nn.ReLU(),
            ]
        elif kind == "efficient":
            blocks += [hnn.EfficientLorentzConv2d(16, 16, 3, manifold, padding=1), hnn.LorentzBatchNorm2d(16, manifold)]
        elif kind == "linear":
            blocks += [hnn.LorentzLinear(16, 16, manifold, init="xavier"), hnn.LorentzLayerNorm(16), nn.GELU()]
        elif kind == "fgg":
            blocks += [
                hnn.FGGLinear(16, 16, manifold, init="lorentz_kaiming"),
                hnn.GyroLorentzBatchNorm1d(16, manifold),
            ]
        else:
            blocks += [hnn.PoincareFullyConnected(16, 16, PoincareBall(1.0), init="identity")]
    return nn.Sequential(*blocks)


@pytest.mark.parametrize("kind", ["conv", "efficient", "linear", "fgg", "poincare"])
@pytest.mark.parametrize("amp", [False, True])
def test_fifty_layers_deep(kind, amp):
    """Radii stay in range and every gradient is finite and not 0."""
    torch.manual_seed(0)
    network = deep(kind)
    if kind == "poincare":
        x = PoincareBall(1.0).from_tangent0(torch.randn(8, 16))
    else:
        x = torch.randn(8, 16, 6, 6) if "conv" in kind or kind == "efficient" else torch.randn(8, 4, 16)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        out = network(x)
    assert out.isfinite().all()
    radius = torch.asinh(out.float().norm(dim=1 if out.dim() == 4 else -1)).max()
    assert radius < 15
    out.float().square().sum().backward()
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    assert grads and all(g.isfinite().all() for g in grads)
    assert next(network.parameters()).grad.abs().max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: hnn.LorentzLinear(0, 3, m), "in_features"),
        (lambda m: hnn.LorentzLinear(2, 3, m, init="zeros"), "init"),
        (lambda m: hnn.FGGLinear(2, 3, m, init="zeros"), "init"),
        (lambda m: hnn.LorentzConv2d(2, 3, 0, m), "kernel_size"),
        (lambda m: hnn.LorentzConv2d(2, 3, (1, 2, 3), m), "kernel_size"),
        (lambda m: hnn.LorentzConvTranspose2d(2, 3, 3, m, padding=3), "padding"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, norm_match="all"), "norm_match"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, boost="all"), "boost"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, slope=-1), "slope"),
        (lambda m: hnn.LorentzBatchNorm2d(0, m), "num_features"),
        (lambda m: hnn.LorentzBatchNorm2d(3, m, momentum=2), "momentum"),
        (
            lambda m: hnn.LorentzBatchNorm2d(3, m)(torch.zeros(2, 4, 5, 5)),
            "3 features in dimension 1.*points with time",
        ),
        (lambda m: hnn.LorentzBatchNorm1d(3, m)(torch.zeros(2, 4)), "3 features"),
        (lambda m: hnn.LorentzResidual(m, "sum"), "mode"),
        (lambda m: hnn.LorentzAttention(6, 4, m), "num_heads"),
        (lambda m: hnn.HyperbolicEmbedding(0, 4, m), "num_embeddings"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(Lorentz())
