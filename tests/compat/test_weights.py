"""Weights of published layers: ours compute what the published formulas do with them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from hypvision.compat import (
    FGGMLR,
    FGGLinear,
    GaneaMLR,
    GyroLorentzBatchNorm1d,
    PLFCLinear,
    PoincareBatchNorm1d,
    PoincareBatchNorm2d,
    PoincareConv2d,
    PoincareFullyConnected,
    PoincareLinear,
    PoincareMLR,
    layer_state,
)
from hypvision.geometry import Lorentz, PoincareBall, poincare
from hypvision.io.errors import HypvisionError
from hypvision.nn import (
    EfficientLorentzConv2d,
    EfficientLorentzLinear,
    HyperbolicEmbedding,
    LorentzAttention,
    LorentzBatchNorm2d,
    LorentzConv1d,
    LorentzConv2d,
    LorentzConvTranspose2d,
    LorentzLinear,
    LorentzMLR,
    LorentzResidual,
)

C = 0.5
LORENTZ, BALL = Lorentz(C), PoincareBall(C)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def loaded(layer, published, library):
    layer = layer.double().eval()
    layer.load_state_dict(layer_state(layer, published, library))
    return layer


def with_time(space):
    return torch.cat([(space.square().sum(-1, keepdim=True) + 1 / C).sqrt(), space], -1)


@pytest.mark.parametrize("normalize", [False, True])
def test_hyperboliccv_linear(normalize):
    state = {
        "weight.weight": randn(5, 4),
        "weight.bias": randn(5),
        "scale": torch.tensor(2.3).double(),
        "manifold.k": torch.tensor(1 / C),
    }
    layer = loaded(LorentzLinear(3, 4, LORENTZ, normalize=normalize), state, "hyperboliccv")
    x = randn(6, 3)
    y = F.linear(with_time(x), state["weight.weight"], state["weight.bias"])
    expected = y[:, 1:]
    if normalize:
        expected = (
            torch.sigmoid(y[:, :1]) * math.exp(2.3) * expected / expected.norm(dim=-1, keepdim=True)
        )
    torch.testing.assert_close(layer(x), expected)


def patches(x, kernel, stride, padding):
    """Published: patches of points, origins around, concatenated by position, then channel."""
    batch, _, height, width = x.shape
    points = F.pad(x, (padding,) * 4).movedim(1, -1)
    rows = (height + 2 * padding - kernel) // stride + 1
    columns = (width + 2 * padding - kernel) // stride + 1
    for i in range(rows):
        for j in range(columns):
            patch = points[
                :, i * stride : i * stride + kernel, j * stride : j * stride + kernel
            ].flatten(1)
            yield i, j, with_time(patch)


def test_hyperboliccv_convolution():
    state = {
        "linearized_kernel.weight.weight": randn(6, 4 * 9 + 1),
        "linearized_kernel.weight.bias": randn(6),
        "linearized_kernel.scale": torch.tensor(2.3),
        "linearized_kernel.manifold.k": torch.tensor(1 / C),
    }
    layer = loaded(LorentzConv2d(4, 5, 3, LORENTZ, stride=2, padding=1), state, "hyperboliccv")
    x = randn(2, 4, 6, 7)
    out = layer(x)
    for i, j, patch in patches(x, 3, 2, 1):
        y = F.linear(
            patch, state["linearized_kernel.weight.weight"], state["linearized_kernel.weight.bias"]
        )
        torch.testing.assert_close(out[:, :, i, j], y[:, 1:])


def test_hyperboliccv_convolution_1d():
    """Its patches are ordered by channel, then position."""
    state = {
        "linearized_kernel.weight.weight": randn(6, 4 * 3 + 1),
        "linearized_kernel.weight.bias": randn(6),
    }
    layer = loaded(LorentzConv1d(4, 5, 3, LORENTZ, stride=2, padding=1), state, "hyperboliccv")
    x = randn(2, 4, 8)
    out = layer(x)
    windows = F.pad(x, (1, 1)).unfold(2, 3, 2)  # (B, C, L', k)
    for i in range(out.shape[2]):
        y = F.linear(with_time(windows[:, :, i].flatten(1)), *state.values())
        torch.testing.assert_close(out[:, :, i], y[:, 1:])


def test_hyperboliccv_transposed_convolution():
    state = {
        "conv.linearized_kernel.weight.weight": randn(4, 2 * 9 + 1),
        "conv.linearized_kernel.weight.bias": randn(4),
        "conv.linearized_kernel.scale": torch.tensor(2.3),
        "pad_weight": torch.ones(3, 1, 3, 3),
    }
    layer = loaded(
        LorentzConvTranspose2d(2, 3, 3, LORENTZ, stride=2, padding=1), state, "hyperboliccv"
    )
    x = randn(2, 2, 3, 4)
    spread = torch.zeros(2, 2, 5, 7, dtype=x.dtype)
    spread[..., ::2, ::2] = x
    out = layer(x)
    for i, j, patch in patches(spread, 3, 1, 1):
        y = F.linear(
            patch,
            state["conv.linearized_kernel.weight.weight"],
            state["conv.linearized_kernel.weight.bias"],
        )
        torch.testing.assert_close(out[:, :, i, j], y[:, 1:])


def test_hyperboliccv_batch_norm():
    state = {
        "beta": with_time(randn(3)),
        "gamma": torch.tensor([1.7]).double(),
        "running_mean": torch.cat([torch.zeros(1), 0.3 * randn(3)]),
        "running_var": torch.tensor([0.8]).double(),
    }
    layer = loaded(LorentzBatchNorm2d(3, LORENTZ), state, "hyperboliccv")
    x = randn(2, 3, 4, 4)
    mean = LORENTZ.expmap0(state["running_mean"][1:])
    points = with_time(x.movedim(1, -1))
    tangent = LORENTZ.transp0back(
        mean.expand_as(points), LORENTZ.logmap(mean.expand_as(points), points)
    )
    tangent = tangent * 1.7 / (0.8 + 1e-5)
    beta = state["beta"].expand_as(points)
    expected = LORENTZ.expmap(beta, LORENTZ.transp0(beta, tangent))[..., 1:].movedim(-1, 1)
    torch.testing.assert_close(layer(x), expected)


def test_hyperboliccv_classifier():
    state = {"a": randn(5), "z": randn(5, 3), "manifold.k": torch.tensor(1 / C)}
    layer = loaded(LorentzMLR(3, 5, LORENTZ), state, "hyperboliccv")
    x = randn(6, 3)
    points, length = with_time(x), state["z"].norm(dim=-1)
    angle = C**0.5 * state["a"]
    alpha = (
        torch.cosh(angle) * (points[:, 1:] @ state["z"].t())
        - torch.sinh(angle) * length * points[:, :1]
    )
    torch.testing.assert_close(layer(x), length / C**0.5 * torch.asinh(C**0.5 * alpha / length))


def test_chen_linear():
    """Fully hyperbolic networks: the time is a gate, the space part has what length it leaves; c =
    1 there."""
    state = {
        "weight.weight": randn(5, 4),
        "weight.bias": randn(5),
        "scale": torch.tensor(2.0).double(),
    }
    state["weight.weight"][:, 0] = 0  # as published, the time is not read
    layer = loaded(
        LorentzLinear(3, 4, Lorentz(1.0), normalize="time"), state, "fully-hyperbolic-nn"
    )
    x = randn(6, 3)
    points = torch.cat([(x.square().sum(-1, keepdim=True) + 1).sqrt(), x], -1)
    y = F.linear(points, state["weight.weight"], state["weight.bias"])
    time = torch.sigmoid(y[:, :1]) * math.exp(2.0) + 1.1
    expected = y[:, 1:] * ((time.square() - 1) / y[:, 1:].square().sum(-1, keepdim=True)).sqrt()
    torch.testing.assert_close(layer(x), expected)
    with pytest.raises(HypvisionError, match="normalize='time'"):
        layer_state(LorentzLinear(3, 4, LORENTZ), state, "fully-hyperbolic-nn")
    with pytest.raises(HypvisionError, match="normalize=False or True"):
        layer_state(LorentzLinear(3, 4, LORENTZ, normalize="time"), state, "hyperboliccv")


def test_efficient_layers_of_the_plus_models():
    state = {"rotate.weight": randn(4, 3, 3, 3), "boost.weight": torch.tensor([0.7]).double()}
    layer = loaded(
        EfficientLorentzConv2d(3, 4, 3, LORENTZ, norm_match="none", slope=None), state, "lhier"
    )
    x = randn(2, 3, 5, 5)
    y = F.conv2d(x, state["rotate.weight"])
    time = (y.square().sum(1) + 1 / C).sqrt()
    last = math.sinh(0.7) * time + math.cosh(0.7) * y[:, -1]
    torch.testing.assert_close(layer(x), torch.cat([y[:, :-1], last[:, None]], 1))

    raw = {
        "rotate.parametrizations.weight.original": randn(5, 3),
        "boost.weight": torch.tensor([0.7]).double(),
    }
    layer = loaded(EfficientLorentzLinear(3, 5, LORENTZ, boost="axis", slope=None), raw, "lhier")
    skew = F.pad(torch.tril(raw["rotate.parametrizations.weight.original"]), (0, 2))
    skew, eye = skew - skew.t(), torch.eye(5).double()
    y = randn(6, 3)
    turned = y @ (torch.linalg.inv(eye - skew / 2) @ (eye + skew / 2))[:, :3].t()
    torch.testing.assert_close(layer(y)[:, :-1], turned[:, :-1])
    torch.testing.assert_close(turned.norm(dim=-1), y.norm(dim=-1))


def test_other_layers_of_the_plus_models_are_those_of_hyperboliccv():
    norm = LorentzBatchNorm2d(3, LORENTZ)
    state = {
        "beta": norm.beta.detach(),
        "gamma": randn(1),
        "running_mean": randn(4),
        "running_var": randn(1),
    }
    mlr = {"a": randn(5), "z": randn(5, 3), "manifold.k": torch.tensor(1 / C)}
    for layer, published in ((norm, state), (LorentzMLR(3, 5, LORENTZ), mlr)):
        one, other = (
            layer_state(layer, published, library) for library in ("lhier", "hyperboliccv")
        )
        assert one.keys() == other.keys() and all(
            torch.equal(one[name], other[name]) for name in one
        )


@pytest.mark.parametrize("weight_norm", [False, True])
def test_fgg_layers(weight_norm):
    state = {"a": 0.3 * randn(1, 4), "V_auxiliary": randn(4, 4), "manifold._k": torch.tensor(C)}
    if weight_norm:
        state |= {"v": randn(3, 4), "g": randn(4)}
        normals = F.softplus(state["g"]) * state["v"] / state["v"].norm(dim=0)
    else:
        normals = state["U"] = randn(3, 4)
    length = normals.norm(dim=0)
    angle = C**0.5 * state["a"][0] / length
    planes = torch.cat([-(length * torch.sinh(angle))[None], normals * torch.cosh(angle)])
    x = randn(6, 3)
    layer = loaded(FGGLinear(3, 4, LORENTZ, weight_norm=weight_norm), state, "fgg")
    torch.testing.assert_close(layer(x), with_time(x) @ planes)
    head = loaded(FGGMLR(3, 4, LORENTZ, weight_norm=weight_norm), state, "fgg")
    torch.testing.assert_close(head(x), torch.asinh(C**0.5 * with_time(x) @ planes) / C**0.5)


def test_geoopt_layers():
    """Points on hyperplanes with the library's own gyro-operations, which are boosts; ``k = 1 / c``
    there."""
    x, state = randn(6, 3), {"z": randn(4, 3), "a": 0.3 * randn(4), "bias": 0.5 * randn(4)}
    state["manifold.k"] = torch.tensor(1 / C)
    layer = loaded(PLFCLinear(3, 4, LORENTZ), state, "geoopt")
    length, angle = state["z"].norm(dim=1), C**0.5 * state["a"]
    alpha = (
        torch.cosh(angle) * (x @ state["z"].t()) - torch.sinh(angle) * length * with_time(x)[:, :1]
    )
    space = torch.sinh(length * torch.asinh(C**0.5 * alpha / length)) / C**0.5
    expected = LORENTZ.boost(with_time(space), LORENTZ.expmap0(state["bias"]).expand(6, 5))
    torch.testing.assert_close(layer(x), expected[:, 1:])

    state = {
        "bias": LORENTZ.expmap0(0.5 * randn(3)),
        "log_scale": torch.tensor(0.3).double(),
        "running_mean": LORENTZ.expmap0(0.4 * randn(3)),
        "running_var": torch.tensor(0.8).double(),
    }
    layer = loaded(GyroLorentzBatchNorm1d(3, LORENTZ), state, "geoopt")
    centred = LORENTZ.unboost(state["running_mean"].expand(6, 4), with_time(x))
    scaled = LORENTZ.scalar_mul(math.exp(0.3) / math.sqrt(0.8 + 1e-5), centred)
    expected = LORENTZ.boost(state["bias"].expand(6, 4), scaled)
    torch.testing.assert_close(layer(x), expected[:, 1:])


def test_hypercore_linear():
    state = {
        "linear.weight": randn(4, 4),
        "linear.bias": randn(4),
        "manifold.c": torch.tensor(C),
        "linear.c": torch.ones(1),
    }
    layer = loaded(LorentzLinear(3, 4, LORENTZ), state, "hypercore")
    x = randn(6, 3)
    torch.testing.assert_close(
        layer(x), F.linear(with_time(x), state["linear.weight"], state["linear.bias"])
    )


def test_hypercore_linear_without_bias():
    state = {"linear.weight": randn(4, 4), "manifold.c": torch.tensor(C), "linear.c": torch.ones(1)}
    layer = loaded(LorentzLinear(3, 4, LORENTZ, bias=False), state, "hypercore")
    x = randn(6, 3)
    torch.testing.assert_close(layer(x), F.linear(with_time(x), state["linear.weight"]))


@pytest.mark.parametrize("bias", [True, False])
def test_hypercore_convolution(bias):
    state = {"linearized_kernel.linear.weight": randn(5, 4 * 9 + 1)}
    state |= {"linearized_kernel.linear.bias": randn(5)} if bias else {}
    layer = loaded(
        LorentzConv2d(4, 5, 3, LORENTZ, stride=2, padding=1, bias=bias), state, "hypercore"
    )
    x = randn(2, 4, 6, 7)
    out = layer(x)
    for i, j, patch in patches(x, 3, 2, 1):
        torch.testing.assert_close(out[:, :, i, j], F.linear(patch, *state.values()))


@pytest.mark.parametrize("concat", [True, False])
def test_hypercore_attention(concat):
    """Points of 8 coordinates, two heads of 4: heads, scores and centroids with their times."""
    state = {f"W{k}.weight": randn(6, 8) for k in "qkv"} | {f"W{k}.bias": randn(6) for k in "qkv"}
    state |= {
        "scale": torch.tensor([2.5]).double(),
        "bias": torch.tensor(0.4).double(),
        "c": torch.tensor(1 / C),
    }
    if concat:
        state |= {"final_linear.weight": randn(7, 8), "final_linear.bias": randn(7)}
    join = "points" if concat else "centroid"
    layer = loaded(LorentzAttention(7, 2, LORENTZ, head_dim=3, join=join), state, "hypercore")
    x = randn(2, 5, 7)

    def heads(k):
        return with_time(
            F.linear(with_time(x), state[f"W{k}.weight"], state[f"W{k}.bias"]).unflatten(-1, (2, 3))
        )

    def centroid(points):
        square = points[..., :1] ** 2 - points[..., 1:].square().sum(-1, keepdim=True)
        return points / (C * square).sqrt()

    q, k, v = (heads(name).transpose(1, 2) for name in "qkv")
    inner = q[..., 1:] @ k[..., 1:].transpose(2, 3) - q[..., :1] @ k[..., :1].transpose(2, 3)
    weights = ((2 / C + 2 * inner) / 2.5 + 0.4).softmax(-1)
    mean = centroid(weights @ v).transpose(1, 2)
    if concat:
        expected = F.linear(
            mean.flatten(2), state["final_linear.weight"], state["final_linear.bias"]
        )
    else:
        expected = centroid(mean.mean(2))[..., 1:]
    torch.testing.assert_close(layer(x), expected)
    with pytest.raises(HypvisionError, match="join='points'"):
        layer_state(LorentzAttention(8, 2, LORENTZ), state, "hypercore")


def test_hypercore_residual():
    state = {
        "w_y": torch.tensor(0.7).double(),
        "scale": torch.tensor(1.3).double(),
        "c": torch.tensor(1 / C),
    }
    layer = loaded(LorentzResidual(LORENTZ, "average", scale="learned"), state, "hypercore")
    x, y = randn(6, 3), randn(6, 3)
    mean = with_time(x) + 0.7 * with_time(y)
    norm = (C * (mean[:, :1] ** 2 - mean[:, 1:].square().sum(-1, keepdim=True))).sqrt()
    space = mean[:, 1:] / norm
    torch.testing.assert_close(layer(x, y), space * math.exp(1.3))


def test_hyptorch_layers():
    x = poincare.expmap0(0.4 * randn(6, 3), C)
    state = {"weight": randn(4, 3), "bias": 0.2 * randn(4), "c": torch.tensor(C)}
    with pytest.warns(UserWarning, match="as if c were 1, ours with c ="):
        layer = loaded(PoincareLinear(3, 4, BALL), state, "hyptorch")
    expected = poincare.mobius_add(
        poincare.mobius_matvec(state["weight"], x, C),
        poincare.expmap0(state["bias"], C).expand(6, 4),
        C,
    )
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-8)

    state = {"a_vals": randn(5, 3), "p_vals": 0.3 * randn(5, 3), "c": torch.tensor(C)}
    layer = loaded(GaneaMLR(3, 5, BALL), state, "hyptorch")
    for k in range(5):
        p = poincare.expmap0(state["p_vals"][k], C)
        gap = 1 - C * p.square().sum()
        a, w = state["a_vals"][k] * gap, poincare.mobius_add(-p.expand(6, 3), x, C)
        inner = 2 * C**0.5 * (w @ a) / (a.norm() * (1 - C * w.square().sum(-1)))
        torch.testing.assert_close(layer(x)[:, k], 2 / gap * a.norm() / C**0.5 * torch.asinh(inner))


def test_hnn_classifier():
    x = poincare.expmap0(0.4 * randn(6, 3), C)
    state = {
        "weight_g": randn(5).abs(),
        "weight_v": randn(3, 5),
        "bias": 0.3 * randn(5),
        "ball.isp_c": torch.ones(()),
    }
    layer = loaded(PoincareMLR(3, 5, BALL), state, "hnn++")
    unit, factor = (
        F.normalize(state["weight_v"], dim=0),
        2 / (1 - C * x.square().sum(-1, keepdim=True)),
    )
    angle = 2 * C**0.5 * state["bias"]
    inner = C**0.5 * factor * (x @ unit) * torch.cosh(angle) - (factor - 1) * torch.sinh(angle)
    torch.testing.assert_close(layer(x), 2 * state["weight_g"] / C**0.5 * torch.asinh(inner))


def test_hypll_layers():
    """Against the library itself."""
    hypll = pytest.importorskip("hypll.nn")
    from hypll.manifolds.poincare_ball import Curvature
    from hypll.manifolds.poincare_ball import PoincareBall as HypllBall
    from hypll.tensors import ManifoldTensor

    manifold = HypllBall(Curvature(C, constraining_strategy=lambda value: value))
    theirs = hypll.HLinear(3, 4, manifold=manifold)
    torch.nn.init.normal_(theirs.bias, std=0.3)
    layer = PoincareFullyConnected(3, 4, BALL)
    layer.load_state_dict(layer_state(layer, theirs.state_dict(), "hypll"))
    x = poincare.expmap0(0.4 * torch.randn(6, 3), C)
    expected = theirs(ManifoldTensor(x, manifold=manifold)).tensor.detach()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)

    theirs = hypll.HConvolution2d(3, 4, 3, manifold=manifold, padding=1, stride=2)
    torch.nn.init.normal_(theirs.bias, std=0.3)
    layer = loaded(
        PoincareConv2d(3, 4, 3, BALL, padding=1, stride=2), _plain(theirs), "hypll"
    ).float()
    x = poincare.expmap0(0.4 * torch.randn(2, 7, 6, 3), C).movedim(-1, 1)
    expected = theirs(ManifoldTensor(x, manifold=manifold, man_dim=1)).tensor.detach()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
    for midpoint in (True, False):
        norm = hypll.HBatchNorm2d(3, manifold, use_midpoint=midpoint)
        torch.nn.init.normal_(norm.norm.bias, std=0.3)
        torch.nn.init.constant_(norm.norm.weight, 0.7)
        options = {"mean": "midpoint" if midpoint else "frechet", "track_running_stats": False}
        layer = loaded(PoincareBatchNorm2d(3, BALL, **options), _plain(norm), "hypll").float()
        expected = norm(ManifoldTensor(x, manifold=manifold, man_dim=1)).tensor.detach()
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(HypvisionError, match="track_running_stats=False"):
        layer_state(PoincareBatchNorm1d(3, BALL), _plain(norm.norm), "hypll")

    points = {"weight": poincare.expmap0(0.4 * randn(7, 3), C)}
    assert torch.equal(
        loaded(HyperbolicEmbedding(7, 3, BALL), points, "hypll").weight, points["weight"]
    )


def _plain(module):
    found = dict(module.state_dict())
    for name, parameter in module.named_parameters():
        found.setdefault(name, getattr(parameter, "tensor", parameter))
    return {name: getattr(value, "tensor", value) for name, value in found.items()}


# --------------------------------------------------------------------------------------------------
# What does not fit


def test_mistakes_are_named():
    layer, good = LorentzMLR(3, 5, LORENTZ), {"a": randn(5), "z": randn(5, 3)}
    with pytest.raises(HypvisionError, match="'hyperboliccv'.*got 'manify'"):
        layer_state(layer, good, "manify")
    with pytest.raises(
        HypvisionError, match="hypll has no counterpart of LorentzMLR.*PoincareFullyConnected"
    ):
        layer_state(layer, good, "hypll")
    with pytest.raises(HypvisionError, match="no 'z', but a"):
        layer_state(layer, {"a": randn(5)}, "hyperboliccv")
    with pytest.raises(HypvisionError, match="hyperboliccv.*momentum"):
        layer_state(layer, {**good, "momentum": randn(1)}, "hyperboliccv")
    with pytest.raises(HypvisionError, match=r"'z' has the shape \(5, 4\).*\(5, 3\)"):
        layer_state(layer, {"a": randn(5), "z": randn(5, 4)}, "hyperboliccv")
    with pytest.raises(HypvisionError, match="lacks bias"):
        layer_state(LorentzLinear(3, 4, LORENTZ), {"weight.weight": randn(5, 4)}, "hyperboliccv")
    biased = {"weight.weight": randn(5, 4), "weight.bias": randn(5)}
    for normalize in (False, True):
        with pytest.raises(HypvisionError, match="bias"):
            layer_state(
                LorentzLinear(3, 4, LORENTZ, bias=False, normalize=normalize),
                biased,
                "hyperboliccv",
            )
    with pytest.raises(HypvisionError, match="9 positions"):
        layer_state(
            LorentzConv2d(4, 5, 3, LORENTZ),
            {"linearized_kernel.weight.weight": randn(6, 20)},
            "hyperboliccv",
        )


def test_a_learned_curvature_keeps_its_value():
    manifold = Lorentz(0.3, learnable=True)
    layer = LorentzMLR(3, 5, manifold)
    layer.load_state_dict(layer_state(layer, {"a": randn(5), "z": randn(5, 3)}, "hyperboliccv"))
    assert manifold.c.item() == pytest.approx(0.3)
